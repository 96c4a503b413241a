# shellcheck shell=bash
# Checks of inputs. Each ends the script with the input's name, its value as given and the rule;
# none changes anything.

source "${BASH_SOURCE[0]%/*}/result.sh"

validate_pattern() { # <name> <value> <regex> <rule>
  if [[ ! $2 =~ ^($3)$ || $2 == *[[:cntrl:]]* ]]; then
    result_fail invalid "$1=${2@Q} is not valid" "$1 must be $4"
  fi
}

validate_number() { # <name> <value> <min> <max> [<unit>]
  if [[ ! $2 =~ ^(0|[1-9][0-9]{0,9})$ ]] || (($2 < $3 || $2 > $4)); then
    result_fail invalid "$1=${2@Q} is not valid" "$1 must be a whole number from $3 to $4${5:+ ($5)}"
  fi
}

validate_uuid() { # <name> <value>
  validate_pattern "$1" "$2" '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}' 'a UUID in lower case'
}

validate_name() { # <name> <value>: a VM's name
  validate_pattern "$1" "$2" '[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?' \
    'a DNS label: 1 to 63 of a-z 0-9 and -, neither first nor last a -'
}

validate_ssh_key() { # <name> <value>: one public key
  validate_pattern "$1" "$2" '(ssh-(ed25519|rsa)|ecdsa-sha2-nistp(256|384|521)|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com) [A-Za-z0-9+/]+={0,3}( .*)?' \
    "one line, the text of a public key file ('ssh-ed25519 AAAA... comment')"
}

# Names on the Proxmox side. Empty stands for the default where there is one.

validate_node() { # <value>
  validate_pattern PROXMOX_NODE "$1" '([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)?' 'the name of a Proxmox node'
}

validate_reserve() { # <GB of a storage that stay free>
  validate_number STORAGE_RESERVE "$1" 0 1000000 GB
}

validate_storage() { # <value>
  validate_pattern PROXMOX_STORAGE "$1" '[A-Za-z][A-Za-z0-9_.-]*' 'the name of a Proxmox storage'
}

validate_bridge() { # <value>
  validate_pattern PROXMOX_BRIDGE "$1" '[A-Za-z][A-Za-z0-9_.-]{0,14}' 'the name of a bridge'
}

validate_template() { # <value>
  validate_pattern VM_TEMPLATE "$1" '([A-Za-z0-9][A-Za-z0-9.-]*)?' 'the name or the ID of a template'
}

validate_range() { # <IDs for VMs>
  validate_pattern VM_ID_RANGE "$1" '[1-9][0-9]{2,8}-[1-9][0-9]{2,8}' 'FIRST-LAST, from 100 to 999999999'
  validate_number 'the end of VM_ID_RANGE' "${1#*-}" "${1%-*}" 999999999
}

validate_tools() { # <tool...>
  local tool
  for tool in "$@"; do
    if ! command -v "${tool}" >/dev/null; then
      result_fail dependency "'${tool}' is not on this machine (${HOSTNAME})" \
        'run this on a Proxmox VE host, as root, with its usual PATH'
    fi
  done
}
