#!/bin/sh
exec linus dispatch cursor-worker --egress internet
