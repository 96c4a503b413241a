#!/usr/bin/env bash
# Makes the Go files of this directory from its descriptions. go generate runs it here.
set -Eeuo pipefail
shopt -s inherit_errexit

tools=$(mktemp -d)
trap 'rm -rf -- "${tools}"' EXIT
go build -o "${tools}/" google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go
# What package they are in is said here, not there, where it would be part of what is generated.
package=$(go list)
options=paths=source_relative,Mprocess.proto=${package},Mfilesystem.proto=${package}
protoc --plugin="${tools}/protoc-gen-go" --plugin="${tools}/protoc-gen-connect-go" \
  --go_out=. --go_opt="${options}" --connect-go_out=. --connect-go_opt="${options},package_suffix=,simple" \
  process.proto filesystem.proto
gofmt -w ./*.go
