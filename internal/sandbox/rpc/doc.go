// Package rpc is the protocol of E2B's envd as Go types, generated from the two descriptions beside
// it. go generate ./internal/sandbox/rpc regenerates it, with protoc of Debian's protobuf-compiler
// and the generators of the modules in go.mod.
package rpc

//go:generate bash generate.sh
