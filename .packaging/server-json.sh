#!/usr/bin/env bash
# Writes server.json, what the MCP registry wants to know of a release, to
# stdout: the bundles in DIR, where the release has them, and their hashes.
# usage: server-json.sh VERSION DIR OWNER/REPOSITORY
set -Eeuo pipefail

version=$1 dir=$2 repository=$3
packages=""
for bundle in "${dir}"/*.mcpb; do
  sum=$(sha256sum -- "${bundle}")
  url=https://github.com/${repository}/releases/download/v${version}/$(basename -- "${bundle}")
  packages+=${packages:+,}$(printf '
    {
      "registryType": "mcpb",
      "identifier": "%s",
      "version": "%s",
      "fileSha256": "%s",
      "transport": { "type": "stdio" },
      "environmentVariables": [
        { "name": "PROXMOX_HOST", "isRequired": true, "description": "Name or address of the Proxmox VE host, reached by SSH." },
        { "name": "PROXMOX_SSH_KEY_PATH", "format": "filepath", "description": "Private key file for the host. Empty: the SSH agent, then id_ed25519, id_ecdsa and id_rsa in ~/.ssh." }
      ]
    }' "${url}" "${version}" "${sum%% *}")
done
cat <<JSON
{
  "\$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
  "name": "io.github.${repository}",
  "title": "linus",
  "description": "Run jobs in ephemeral Proxmox VE virtual machines",
  "version": "${version}",
  "repository": { "url": "https://github.com/${repository}", "source": "github" },
  "packages": [${packages}
  ]
}
JSON
