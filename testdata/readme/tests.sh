#!/bin/sh
# The tests of calc.sh; their report is report/tests.xml.
cd "$(dirname "$0")" || exit 1
mkdir -p report
failures=0 cases=
check() { # <name> <wanted> <argument>...
  name=$1 wanted=$2
  shift 2
  if [ "$(./calc.sh "$@")" = "${wanted}" ]; then
    echo "ok - ${name}"
    cases="${cases}<testcase name=\"${name}\"/>"
  else
    echo "not ok - ${name}"
    failures=$((failures + 1))
    cases="${cases}<testcase name=\"${name}\"><failure/></testcase>"
  fi
}
check adds 5 2 add 3
check divides 4 8 divide 2
echo "<testsuite failures=\"${failures}\">${cases}</testsuite>" >report/tests.xml
[ "${failures}" = 0 ]
