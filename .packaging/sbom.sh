#!/usr/bin/env bash
# Writes the software bill of materials of a release to stdout, as CycloneDX JSON: the Go
# modules that are in any of its binaries, as those say, and the web page's npm packages.
# usage: sbom.sh VERSION BINARY...
set -Eeuo pipefail
shopt -s inherit_errexit

version=$1
shift
root=$(cd "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
page=$(awk 'NF == 3 && !/^#/ { print $2 }' "${root}/internal/web/vendored.txt" | LC_ALL=C sort -u)
time=$(date -u -d "@${SOURCE_DATE_EPOCH:-0}" +%FT%TZ)
built=$(go version -m "$@")
jq -n -R --arg version "${version}" --arg time "${time}" --arg page "${page}" '
  def component($name; $version; $purl): {type: "library", "bom-ref": $purl, name: $name, version: $version, purl: $purl};
  # As a package URL has a name or a version: slashes stay.
  def escaped: split("/") | map(@uri) | join("/");
  def compiled: component(.name; .version; "pkg:golang/\(.name | ascii_downcase | escaped)@\(.version | @uri)")
    + (if .sum then {properties: [{name: "go.sum", value: .sum}]} else {} end);
  [inputs] as $lines
  # A line "=>" says what stands in the place of the module before it.
  | (reduce ($lines[] | split("\t")) as $f ([];
      if $f[1] == "dep" then . + [{name: $f[2], version: $f[3], sum: $f[4]}]
      elif $f[1] == "=>" then .[:-1] + [{name: $f[2], version: $f[3], sum: $f[4]}]
      else . end)) as $modules
  | [$lines[] | capture("^[^\t].*: go(?<version>[0-9][^ ]*)") | {name: "stdlib", version: .version}] as $std
  | ($page | split("\n") | map(select(. != "") | capture("^(?<name>.+)@(?<version>[^@]+)$")
      | component(.name; .version; "pkg:npm/\(.name | escaped)@\(.version | @uri)"))) as $npm
  | {
      bomFormat: "CycloneDX", specVersion: "1.5", version: 1,
      metadata: {
        timestamp: $time,
        component: {type: "application", "bom-ref": "linus", name: "linus", version: $version, licenses: [{license: {id: "MIT"}}]}
      },
      components: (($std + $modules | map(compiled)) + $npm | unique_by(.purl)),
      dependencies: [{ref: "linus", dependsOn: (($std + $modules | map(compiled)) + $npm | map(.purl) | unique)}]
    }' <<<"${built}"
