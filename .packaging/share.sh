#!/usr/bin/env bash
# Writes what packages carry beside the binary (man pages, completions) below
# .cache/share, the same bytes for the same commit.
set -Eeuo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

version=${1:?usage: share.sh VERSION}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
rm -rf .cache/share
CGO_ENABLED=0 go run -ldflags "-X main.version=${version}" ./cmd/linus man .cache/share
gzip -9n .cache/share/man/man1/*.1
