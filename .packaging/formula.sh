#!/usr/bin/env bash
# Writes the formula of a release for a Homebrew tap to stdout: the archives in DIR, where
# the release has them, and their hashes.
# usage: formula.sh VERSION DIR OWNER/REPOSITORY
set -Eeuo pipefail
shopt -s inherit_errexit

version=$1 dir=$2 repository=$3

archive() { # <os> <arch>
  local sum
  local -r name=linus_${version}_$1_$2.tar.gz
  sum=$(sha256sum -- "${dir}/${name}")
  printf '      url "https://github.com/%s/releases/download/v%s/%s"\n' "${repository}" "${version}" "${name}"
  printf '      sha256 "%s"\n' "${sum%% *}"
}

cat <<RUBY
class Linus < Formula
  desc "Run jobs in ephemeral Proxmox VE virtual machines"
  homepage "https://github.com/${repository}"
  version "${version}"
  license "MIT"

RUBY
for system in macos:darwin linux:linux; do
  printf '  on_%s do\n' "${system%:*}"
  for processor in arm:arm64 intel:amd64; do
    printf '    on_%s do\n' "${processor%:*}"
    archive "${system#*:}" "${processor#*:}"
    printf '    end\n'
  done
  printf '  end\n\n'
done
cat <<'RUBY'
  def install
    bin.install "linus"
    (lib/"linus").install "linus-worker", "linus-sandbox"
    man1.install Dir["share/man/man1/*"]
    bash_completion.install "share/bash-completion/completions/linus"
    fish_completion.install "share/fish/vendor_completions.d/linus.fish"
    zsh_completion.install "share/zsh/vendor-completions/_linus"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/linus version")
  end
end
RUBY
