#!/bin/sh
# calc.sh A add|divide B
case $2 in
  add) echo $(($1 + $3)) ;;
  divide) echo $(($1 / ($3 + 1))) ;;
esac
