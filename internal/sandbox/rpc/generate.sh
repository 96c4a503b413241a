#!/usr/bin/env bash
# Makes the Go files of this directory from its descriptions. go generate runs it here.
set -Eeuo pipefail
shopt -s inherit_errexit

tools=$(mktemp -d)
trap 'rm -rf -- "${tools}"' EXIT
go build -o "${tools}/" google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go
protoc --plugin="${tools}/protoc-gen-go" --plugin="${tools}/protoc-gen-connect-go" \
  --go_out=. --go_opt=paths=source_relative \
  --connect-go_out=. --connect-go_opt=paths=source_relative,package_suffix=,simple \
  process.proto filesystem.proto
gofmt -w ./*.go
