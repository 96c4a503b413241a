#!/usr/bin/env bash
# Installs what jobs commonly need into this VM: base tools, Python, Node.js, Docker, the
# agents' CLIs and runners of forges. When run again, it adds what is missing and changes
# nothing else.
#
# Where it runs: in the guest (Debian 12 and 13, Ubuntu 24.04, EL 9), as root or as a user
# whose sudo asks for no password. It needs bash, coreutils and a way to the distribution's
# package servers; agents also need the npm registry.
#
# Usage: bootstrap.sh [base] [python] [node] [docker] [claude] [codex]
#                     [gemini] [code-interpreter] [github-runner] [forgejo-runner]
#                     [gitea-runner] [--help]
#   Without names: all of them except code-interpreter and the runners. An agent also installs
#   node; code-interpreter and the runners also install base.
#
# Packages are the distribution's own:
#   Node.js  Debian and Ubuntu: nodejs and npm. EL: the module stream nodejs:22,
#            unless another stream is enabled already.
#   Docker   Debian and Ubuntu: docker.io. EL has no Docker: podman-docker gives
#            the docker command, on Podman, and the version reported is Podman's.
#   Agents   npm's @anthropic-ai/claude-code, @openai/codex, @google/gemini-cli,
#            under /usr/local, with a Node.js 22 if an agent needs a newer one than
#            the distribution's.
#   code-interpreter  IPython's kernel, matplotlib and pandas (EL: from EPEL), and a server of
#            linus that E2B's code interpreter talks to. Sandboxes of this VM start it.
#   Runners  GitHub's archive of LINUS_GITHUB_RUNNER, in /opt/actions-runner; Forgejo's and
#            Gitea's programs of LINUS_FORGEJO_RUNNER and LINUS_GITEA_RUNNER, in
#            /usr/local/bin.
# A node with npm, a docker, an agent or a runner that is there already stays as it is,
# wherever it came from.
#
# Inputs (environment), all optional:
#   LINUS_LOCK_TIMEOUT     seconds to wait for another package manager (600)
#   LINUS_INSTALL_TIMEOUT  seconds one call of a package manager may take (1800)
#   LINUS_GITHUB_RUNNER    URL (https, http or file) of actions-runner-linux-x64-VERSION.tar.gz
#   LINUS_GITHUB_RUNNER_SHA256  its checksum; github-runner needs both
#   LINUS_FORGEJO_RUNNER, LINUS_FORGEJO_RUNNER_SHA256  the same for the program of forgejo-runner
#   LINUS_GITEA_RUNNER, LINUS_GITEA_RUNNER_SHA256      the same for the program of gitea-runner
#   LINUS_GITHUB_RUNNER_USER  the owner of the runner, who runs jobs here (default: whoever
#                          runs this, also through sudo)
#   LINUS_NONCE            frames the answer
#   LINUS_ROOT             where etc/os-release, opt and usr/local lie (a prefix; for tests)
#
# Answer: LINUS_PYTHON_VERSION, LINUS_NODE_VERSION, LINUS_DOCKER_VERSION,
# LINUS_CLAUDE_VERSION, LINUS_CODEX_VERSION, LINUS_GEMINI_VERSION,
# LINUS_CODE_INTERPRETER_VERSION, LINUS_GITHUB_RUNNER_VERSION, LINUS_FORGEJO_RUNNER_VERSION,
# LINUS_GITEA_RUNNER_VERSION of what was asked for; LINUS_PACKAGES_INSTALLED: the names of the
# packages that this run had to add, separated by blanks (without their dependencies and
# without npm's packages), and LINUS_PACKAGE_COUNT, the number of these.
# Exit codes: 0 ok, 1 invalid parameter, 2 a package or sudo is missing, 3 this OS is not
# known, 5 installing failed, 6 another package manager, or this one, did not end in time;
# 129/130/141/143 signal. What is installed always stays.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/bootstrap.sh"

usage() {
  printf '%s\n' \
    'usage: [LINUS_LOCK_TIMEOUT=...] bootstrap.sh [base] [python] [node] [docker] [claude] [codex] [gemini] [code-interpreter] [github-runner] [forgejo-runner] [gitea-runner] [--help]' \
    'Installs them in this VM; without names: all but code-interpreter and the runners. Exit codes and inputs are listed' \
    'at the top of the script.' >&2
}

main() {
  if [[ ${1:-} == --help ]]; then
    usage
    return 0
  fi
  bootstrap_guest "$@"
}

if ! (return 0 2>/dev/null); then main "$@"; fi
