# Prints a script with the libraries that it sources in their places, each once: as package embed
# makes it, and as hosts and guests get it.
# Usage: awk -v dir=<directory of the scripts> -v script=<proxmox/create-vm.sh> -f in-one-piece.awk
function write(file,  line) {
  while ((getline line < file) > 0)
    if (line !~ /^source "/) print line
    else { sub(/.*\//, "", line); sub(/".*/, "", line); if (!had[line]++) write(dir "/lib/" line) }
}
BEGIN { write(dir "/" script) }
