// Begins to build a template, with E2B's SDK, and waits until its first step runs: E2B_API_URL,
// E2B_SANDBOX_URL and E2B_API_KEY say where. It prints what it has seen, as JSON.
import { Template } from 'e2b'

const begun = await Template.buildInBackground(Template().fromBaseImage().runCmd('echo begun; sleep 600'), 'dying')
const seen = {}
while (!seen.begun) {
  const status = await Template.getBuildStatus(begun)
  seen.status = status.status
  if (status.status === 'error') break
  seen.begun = status.logEntries.some((entry) => entry.message === 'begun')
}
console.log(JSON.stringify(seen))
