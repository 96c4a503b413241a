#!/usr/bin/env bash
# Gives the module the path it has on GitHub, github.com/OWNER/linus, so that go install finds
# it: in go.mod, imports, the linter's rules, tests, and how README says it is installed. Run
# where git has the files; it can be run twice, and again with another owner.
# Usage: rename.sh OWNER. Exit codes: 0 done, 1 not done.

old='' new='' # the module's path before and after

# rewrite_imports replaces the path where it stands before one of the module's packages, or
# alone, as tests and the linter's rules have it; not in a name such as a User-Agent.
rewrite_imports() { # <files, a line each>
  local -r files=$1
  local -r was=${old//./\\.}
  xargs -d '\n' sed -Ei \
    "s,(^|[^[:alnum:]./_-])${was}/(cmd|embed|internal|scripts)([^[:alnum:]_-]|\$),\\1${new}/\\2\\3,g" \
    -- <<<"${files}"
}

rewrite_prefixes() {
  local -r was=${old//./\\.}
  local tests
  tests=$(git ls-files -- '*_test.go')
  xargs -d '\n' sed -Ei "s,\"${was}/\",\"${new}/\",g" -- <<<"${tests}"
  sed -Ei "s,\{pkg: ${was}/\,,{pkg: ${new}/\,," -- .golangci.yml
  sed -Ei "s,^module ${was}\$,module ${new}," -- go.mod
}

# How README says that linus is made from source: by make in a tree, by go install from GitHub.
rewrite_readme() {
  # shellcheck disable=SC2016 # backquotes of Markdown
  sed -Ei 's,`make build` writes `bin/linus`\, with Go,`go install '"${new}"'/cmd/linus@latest`\, with Go,
    s,`go install github\.com/[^/]+/linus/cmd/linus@latest`,`go install '"${new}"'/cmd/linus@latest`,' -- README.md
}

main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  local -r owner=${1:-}
  if [[ ! ${owner} =~ ^[A-Za-z0-9]([A-Za-z0-9-]{0,37}[A-Za-z0-9])?$ ]]; then
    printf 'usage: rename.sh OWNER, a name of GitHub such as ada-lovelace\n' >&2
    return 1
  fi
  cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
  old=$(awk '$1 == "module" { print $2 }' go.mod)
  new=github.com/${owner}/linus
  if [[ ${old} == "${new}" ]]; then
    printf 'the module is %s\n' "${new}" >&2
    return 0
  fi
  local files
  files=$(git grep -lIF -- "${old}/")
  rewrite_imports "${files}"
  rewrite_prefixes
  rewrite_readme
  files=$(git grep -lIF -- "\"${new}/" '*.go')
  xargs -d '\n' gofmt -w <<<"${files}" # a longer path may belong elsewhere among the imports
  printf 'the module is %s; see git diff\n' "${new}" >&2
}

if ! (return 0 2>/dev/null); then main "$@"; fi
