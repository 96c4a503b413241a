# Reads command lines parted by \x1f and prints what an option list of qm
# ($lists[0], from internal/lab/pve) does not allow of them.

def misfit($option): # of a value: what is wrong with it, or nothing
  . as $value
  | if $option.type == "integer" or $option.type == "number" then
      (tonumber? // null) as $n
      | if $n == null then "no \($option.type)"
        elif $option.type == "integer" and $n != ($n | floor) then "no integer"
        elif $option.minimum != null and $n < $option.minimum then "under \($option.minimum)"
        elif $option.maximum != null and $n > $option.maximum then "over \($option.maximum)"
        else empty end
    elif $option.type == "boolean" then
      select(IN("0", "1") | not) | "no boolean"
    elif $option.enum then
      select(IN($option.enum[]) | not) | "none of its values"
    elif $option.maxLength and length > $option.maxLength then
      "longer than \($option.maxLength)"
    elif $option.keys then
      ($option.keys | to_entries | map(select(.value.default_key))[0].key) as $default
      | split(",")[]
      | (if contains("=") then {key: sub("=.*"; ""), value: sub("^[^=]*="; "")} else {key: $default, value: .} end) as $part
      | if $part.key == null then "a value without a key: \(.)"
        elif $option.keys[$part.key] == null then "unknown key \($part.key)"
        else $part.value | misfit($option.keys[$part.key]) | "\($part.key): \(.)" end
    else empty end;

def option($options; $name): # null: there is none
  $options[$name] // ($name | capture("^(?<base>.*?[^0-9])(?<n>0|[1-9][0-9]*)$")? // null
    | if . == null then null else
        (.n | tonumber) as $n | $options[.base + "[n]"] | select(. != null and $n <= .max_index) // null end);

inputs | rtrimstr("\u001f") | split("\u001f") | select(.[0] == "qm") | .[1:] as $argv
| (if $argv[0] | IN("guest", "disk", "cloudinit") then {verb: ($argv[:2] | join(" ")), args: $argv[2:]} else {verb: $argv[0], args: $argv[1:]} end) as $call
| ($lists[0][$call.verb] | if .alias then $lists[0][.alias] else . end) as $known
| if $known == null then "qm \($call.verb): there is no such command" else
    ($call.args | (index("--") // length) as $stop | .[:$stop]) as $before
    | ($known.positional - ["extra-args"]) as $names
    | (reduce $before[] as $arg ({free: [], options: [], of: null};
        if .of != null then .options += [{name: .of, value: $arg}] | .of = null
        elif $arg | startswith("-") then .of = ($arg | sub("^--?"; ""))
        else .free += [$arg] end)) as $read
    | (if $read.of != null then "--\($read.of): has no value" else empty end),
      (if ($read.free | length) != ($names | length) then "takes \($names), not \($read.free)" else
         range($names | length) as $i | $read.free[$i] | misfit($known.options[$names[$i]]) | "\($names[$i]) \($read.free[$i]): \(.)" end),
      ($read.options[] | . as $given | option($known.options; .name) as $option
        | if $option == null then "--\(.name): there is no such option"
          else .value | misfit($option) | "--\($given.name) \($given.value): \(.)" end)
    | "qm \($call.verb): \(.)"
  end
