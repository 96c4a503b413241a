#!/usr/bin/env python3
"""Runs a job by the API and prints its output. LINUS_URL and LINUS_TOKEN say where.

    python3 generate.py < openapi.json > linus_api.py && python3 job.py
"""

import os
import sys
import uuid

from linus_api import Client, ProblemError

linus = Client(os.environ["LINUS_URL"], os.environ["LINUS_TOKEN"])

job = linus.submit_job(
    {"manifest": {"agent_type": "script", "task": "echo hello from Python", "labels": {"team": "web", "example": "api"}}},
    idempotency_key=str(uuid.uuid4()),
    wait_seconds=20,
)
after = 0
while "completed_at" not in job:
    news = linus.watch_job(job["id"], after=after)
    for event in news["items"]:
        print(event["kind"], event.get("text", ""), file=sys.stderr)
        after = event["seq"]
    job = news["job"]

found = linus.list_jobs(label=["team=web", "example=api"], limit=1)["items"][0]
print(found["status"], job["outcome"].get("exit_code"), linus.get_output(job["id"], stream="stdout").decode().strip())

try:
    linus.get_vm("nobody")
except ProblemError as refused:
    print(refused.problem["status"], refused.problem["code"])
