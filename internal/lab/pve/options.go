package pve

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"

	"linus/internal/lab/state"
	"linus/internal/lazyregexp"
)

// The options the lab's qm accepts: a part of what the real one accepts, never
// more. A test holds them against the option lists of PVE 8.2 and 9.2.

type optionKind int

const (
	kindString optionKind = iota
	kindBool
	kindInteger
	kindNumber
	kindProps // a property string: key=value,key=value
)

// option is one option or one key of a property string. min and max are
// checked when min >= 0 and max > 0; maxIndex makes `scsi[n]` of `scsi`.
type option struct {
	name       string
	kind       optionKind
	min, max   int
	enum       []string
	pattern    *lazyregexp.Regexp
	check      func(value string) error
	keys       []option
	defaultKey string
	maxIndex   int // -1: no index
}

func text(name string) option { return option{name: name, min: -1, maxIndex: -1} }
func flag(name string) option { return option{name: name, kind: kindBool, min: -1, maxIndex: -1} }
func whole(name string, lowest, highest int) option {
	return option{name: name, kind: kindInteger, min: lowest, max: highest, maxIndex: -1}
}

func number(name string, lowest, highest int) option {
	return option{name: name, kind: kindNumber, min: lowest, max: highest, maxIndex: -1}
}

func oneOf(name string, values ...string) option {
	o := text(name)
	o.enum = values
	return o
}

func matching(name, pattern string) option {
	o := text(name)
	o.pattern = lazyregexp.New("^(?:" + pattern + ")$")
	return o
}

func checked(name string, check func(string) error) option {
	o := text(name)
	o.check = check
	return o
}

func props(name, defaultKey string, keys ...option) option {
	o := text(name)
	o.kind, o.keys, o.defaultKey = kindProps, keys, defaultKey
	return o
}

func (o option) indexed(maxIndex int) option {
	o.maxIndex = maxIndex
	return o
}

// verb is one qm command.
type verb struct {
	name       string
	positional []string // names; their rules are in options
	extra      bool     // takes the rest of the line, as `guest exec` does
	options    []option
	run        func(c *call) error
}

// usage is the line PVE prints below a refused command line.
func (v *verb) usage() string {
	line := "qm " + v.name
	for _, name := range v.positional {
		line += " <" + name + ">"
	}
	if v.extra {
		line += " [<extra-args>]"
	}
	if len(v.options) > len(v.positional) {
		line += " [OPTIONS]"
	}
	return line
}

func (v *verb) option(name string) (option, bool) {
	for _, o := range v.options {
		if o.maxIndex < 0 {
			if o.name == name {
				return o, true
			}
			continue
		}
		index, ok := strings.CutPrefix(name, o.name)
		n, err := strconv.Atoi(index)
		if ok && err == nil && n <= o.maxIndex && index == strconv.Itoa(n) {
			return o, true
		}
	}
	return option{}, false
}

// parse reads a command line as PVE's CLIHandler does: options anywhere up to
// `--`, with one dash or two, a value after a blank or a `=`.
func (v *verb) parse(args []string, stderr io.Writer) (opts map[string]string, extra []string, err error) {
	opts = map[string]string{}
	var rest []string
	bad := false
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			rest = append(rest, args[i+1:]...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			rest = append(rest, arg)
			continue
		}
		name, value, inline := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
		o, known := v.option(name)
		switch {
		case !known || slices.Contains(v.positional, name):
			fmt.Fprintf(stderr, "Unknown option: %s\n", name)
			bad = true
		case inline:
			opts[name] = value
		case o.kind == kindBool:
			opts[name] = "1"
			if i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				i++
				opts[name] = args[i]
			}
		case i+1 == len(args):
			fmt.Fprintf(stderr, "Option %s requires an argument\n", name)
			bad = true
		default:
			i++
			opts[name] = args[i]
		}
	}
	if bad {
		return nil, nil, state.Fail(255, "400 unable to parse option\n%s", v.usage())
	}
	if len(rest) < len(v.positional) {
		return nil, nil, state.Fail(255, "400 not enough arguments\n%s", v.usage())
	}
	if len(rest) > len(v.positional) && !v.extra {
		return nil, nil, state.Fail(255, "400 too many arguments\n%s", v.usage())
	}
	for i, name := range v.positional {
		opts[name] = rest[i]
	}
	if err := v.verify(opts); err != nil {
		return nil, nil, err
	}
	return opts, rest[len(v.positional):], nil
}

// verify checks values against the options' rules and brings booleans to 0
// or 1.
func (v *verb) verify(opts map[string]string) error {
	var problems []string
	for _, name := range state.SortedKeys(opts) {
		o, _ := v.option(name)
		value, err := o.verify(opts[name])
		if err != nil {
			problems = append(problems, name+": "+strings.ReplaceAll(err.Error(), "NAME", name))
		}
		opts[name] = value
	}
	if len(problems) == 0 {
		return nil
	}
	sort.Strings(problems)
	return state.Fail(255, "400 Parameter verification failed.\n%s\n%s", strings.Join(problems, "\n"), v.usage())
}

// verify returns the value in its plain form, or what PVE's JSON schema says
// is wrong with it.
func (o option) verify(value string) (string, error) {
	switch o.kind {
	case kindBool:
		switch strings.ToLower(value) {
		case "1", "on", "yes", "true":
			return "1", nil
		case "0", "off", "no", "false":
			return "0", nil
		}
		return value, fmt.Errorf("type check ('boolean') failed - got '%s'", value)
	case kindInteger, kindNumber:
		return value, o.verifyNumber(value)
	case kindProps:
		return value, o.verifyProps(value)
	}
	if o.enum != nil && !slices.Contains(o.enum, value) {
		return value, fmt.Errorf("value '%s' does not have a value in the enumeration '%s'", value, strings.Join(o.enum, ", "))
	}
	if o.pattern != nil && !o.pattern.MatchString(value) {
		return value, fmt.Errorf("value does not match the regex pattern")
	}
	if o.max > 0 && len(value) > o.max {
		return value, fmt.Errorf("value may only be %d characters long", o.max)
	}
	if o.check != nil {
		return value, o.check(value)
	}
	return value, nil
}

func (o option) verifyNumber(value string) error {
	name, parse := "number", func() (float64, error) { return strconv.ParseFloat(value, 64) }
	if o.kind == kindInteger {
		name, parse = "integer", func() (float64, error) {
			n, err := strconv.ParseInt(value, 10, 64)
			return float64(n), err
		}
	}
	n, err := parse()
	switch {
	case err != nil:
		return fmt.Errorf("type check ('%s') failed - got '%s'", name, value)
	case o.min >= 0 && n < float64(o.min):
		return fmt.Errorf("value must have a minimum value of %d", o.min)
	case o.max > 0 && n > float64(o.max):
		return fmt.Errorf("value must have a maximum value of %d", o.max)
	}
	return nil
}

// verifyProps checks a property string. NAME in its errors stands for the
// option's name.
func (o option) verifyProps(value string) error {
	var problems []string
	seen := map[string]bool{}
	for part := range strings.SplitSeq(value, ",") {
		key, v, named := strings.Cut(part, "=")
		if !named {
			if o.defaultKey == "" || seen[o.defaultKey] {
				return fmt.Errorf("invalid format - format error\nvalue without key, but schema does not define a default key")
			}
			key, v = o.defaultKey, part
		}
		index := slices.IndexFunc(o.keys, func(k option) bool { return k.name == key })
		if index < 0 {
			problems = append(problems, "NAME."+key+": property is not defined in schema and the schema does not allow additional properties")
			continue
		}
		seen[key] = true
		if _, err := o.keys[index].verify(v); err != nil {
			problems = append(problems, "NAME."+key+": "+err.Error())
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("invalid format - format error\n%s", strings.Join(problems, "\n"))
	}
	return nil
}

var (
	dnsName  = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
	configID = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_-]+$`)
	tagName  = lazyregexp.New(`^[a-zA-Z0-9_][a-zA-Z0-9_\-+.]*$`)
)

// The formats of names that Proxmox gives: of storages, pools and nodes.
const (
	storageID = `[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]`
	poolID    = `[A-Za-z0-9_.-]+`
	nodeName  = `[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?`
)

func checkDNSName(value string) error {
	if !dnsName.MatchString(value) {
		return fmt.Errorf("invalid format - value does not look like a valid DNS name")
	}
	return nil
}

// checkConfigID is the rule for names of sections in a config: snapshots'.
func checkConfigID(value string) error {
	if !configID.MatchString(value) {
		return fmt.Errorf("invalid format - invalid configuration ID '%s'", value)
	}
	return nil
}

func checkConfigIDs(value string) error {
	for _, id := range splitList(value) {
		if err := checkConfigID(id); err != nil {
			return err
		}
	}
	return nil
}

func checkAddresses(value string) error {
	for _, address := range splitList(value) {
		if _, err := netip.ParseAddr(address); err != nil && checkDNSName(address) != nil {
			return fmt.Errorf("invalid format - value does not look like a valid address: %s", address)
		}
	}
	return nil
}

func checkTags(value string) error {
	for _, tag := range splitList(value) {
		if !tagName.MatchString(tag) {
			return fmt.Errorf("invalid format - invalid characters in tag")
		}
	}
	return nil
}

// splitList takes a list apart; PVE separates by ; , and blanks.
func splitList(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(";, \x00", r) })
}
