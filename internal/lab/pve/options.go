package pve

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"linus/internal/lab/state"
	"linus/internal/lazyregexp"
)

// option is an option of a command or a key of a property string, as qm's option lists describe it.
type option struct {
	Type      string            `json:"type"` // boolean, integer or number; anything else is a string
	Format    string            `json:"format"`
	Minimum   *float64          `json:"minimum"`
	Maximum   *float64          `json:"maximum"`
	MaxLength int               `json:"maxLength"`
	MaxIndex  *int              `json:"max_index"` // of `scsi[n]`
	Enum      []string          `json:"enum"`
	Keys      map[string]option `json:"keys"` // of a property string: key=value,key=value
	Default   bool              `json:"default_key"`
}

// verb is one command.
type verb struct {
	name       string   // with its tool's name: `qm create`
	positional []string // names; their rules are in options
	extra      bool     // takes the rest of the line, as `guest exec` does
	options    map[string]option
	run        func(c *call) error
}

// usage is the line PVE prints below a refused command line.
func (v *verb) usage() string {
	line := v.name
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

var indexedName = lazyregexp.New(`^(.*?)(0|[1-9][0-9]*)$`)

func (v *verb) option(name string) (option, bool) {
	if o, known := v.options[name]; known && o.MaxIndex == nil {
		return o, true
	}
	m := indexedName.FindStringSubmatch(name)
	if m == nil {
		return option{}, false
	}
	o, known := v.options[m[1]+"[n]"]
	n, err := strconv.Atoi(m[2])
	return o, known && err == nil && n <= *o.MaxIndex
}

// parse reads a command line as PVE's CLIHandler does: options anywhere up to `--`, with one dash
// or two, a value after a blank or a `=`.
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
		case o.Type == "boolean":
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
	problem := ""
	switch {
	case bad:
		problem = "400 unable to parse option"
	case len(rest) < len(v.positional):
		problem = "400 not enough arguments"
	case len(rest) > len(v.positional) && !v.extra:
		problem = "400 too many arguments"
	}
	if problem != "" {
		return nil, nil, state.Fail(255, "%s\n%s", problem, v.usage())
	}
	for i, name := range v.positional {
		opts[name] = rest[i]
	}
	return opts, rest[len(v.positional):], v.verify(opts)
}

// inLocale returns a command-line value as Proxmox decodes it: by the locale, so that in C all
// non-ASCII characters are lost. For loaded modules, the locale at load time counts.
func inLocale(value string) string {
	locale := "C"
	if os.Getenv(loadedVariable) == "" { //nolint:forbidigo // the lab is not the product
		locale = cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")) //nolint:forbidigo // the lab is not the product
	}
	if locale = strings.ToUpper(locale); strings.HasSuffix(locale, "UTF-8") || strings.HasSuffix(locale, "UTF8") {
		return value
	}
	var all strings.Builder
	for _, b := range []byte(value) {
		if b < utf8.RuneSelf {
			all.WriteByte(b)
		} else {
			all.WriteRune(utf8.RuneError)
		}
	}
	return all.String()
}

// verify checks values against the options' rules and normalizes booleans to 0 or 1.
func (v *verb) verify(opts map[string]string) error {
	var problems []string
	for name := range opts {
		o, _ := v.option(name)
		value, err := o.verify(opts[name])
		if pattern := untold[strings.TrimRight(name, "0123456789")]; pattern != nil && err == nil && !pattern.MatchString(value) {
			err = errPattern
		}
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

// verify returns the normalized value, or what PVE's JSON schema reports as wrong with it.
func (o option) verify(value string) (string, error) {
	switch o.Type {
	case "boolean":
		switch strings.ToLower(value) {
		case "1", "on", "yes", "true":
			return "1", nil
		case "0", "off", "no", "false":
			return "0", nil
		}
		return value, fmt.Errorf("type check ('boolean') failed - got '%s'", value)
	case "integer", "number":
		return value, o.verifyNumber(value)
	}
	check := formats[o.Format]
	switch {
	case o.Keys != nil:
		return value, o.verifyProps(value)
	case o.Enum != nil && !slices.Contains(o.Enum, value):
		return value, fmt.Errorf("value '%s' does not have a value in the enumeration '%s'", value, strings.Join(o.Enum, ", "))
	case o.MaxLength > 0 && len(value) > o.MaxLength:
		return value, fmt.Errorf("value may only be %d characters long", o.MaxLength)
	case check != nil:
		return value, check(value)
	}
	return value, nil
}

func (o option) verifyNumber(value string) error {
	n, err := strconv.ParseFloat(value, 64)
	if o.Type == "integer" {
		_, err = strconv.ParseInt(value, 10, 64)
	}
	switch {
	case err != nil:
		return fmt.Errorf("type check ('%s') failed - got '%s'", o.Type, value)
	case o.Minimum != nil && n < *o.Minimum:
		return fmt.Errorf("value must have a minimum value of %g", *o.Minimum)
	case o.Maximum != nil && n > *o.Maximum:
		return fmt.Errorf("value must have a maximum value of %.0f", *o.Maximum)
	}
	return nil
}

// verifyProps checks a property string. NAME in its errors stands for the option's name.
func (o option) verifyProps(value string) error {
	var problems []string
	seen := map[string]bool{}
	for part := range strings.SplitSeq(value, ",") {
		key, v, named := strings.Cut(part, "=")
		if !named {
			key, v = "", part
			for name, k := range o.Keys {
				if k.Default {
					key = name
				}
			}
			if key == "" || seen[key] {
				return fmt.Errorf("invalid format - format error\nvalue without key, but schema does not define a default key")
			}
		}
		k, known := o.Keys[key]
		if !known {
			problems = append(problems, "NAME."+key+": property is not defined in schema and the schema does not allow additional properties")
			continue
		}
		seen[key] = true
		if _, err := k.verify(v); err != nil {
			problems = append(problems, "NAME."+key+": "+err.Error())
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("invalid format - format error\n%s", strings.Join(problems, "\n"))
	}
	return nil
}

var errPattern = fmt.Errorf("value does not match the regex pattern")

// untold holds, by name, patterns of options that the option lists do not give.
var untold = map[string]*lazyregexp.Regexp{
	"size":   lazyregexp.New(`^\+?\d+(\.\d+)?[KMGT]?$`),
	"serial": lazyregexp.New(`^(/dev/[^,]+|socket)$`),
}

var (
	dnsName  = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
	configID = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_-]+$`)
	tagName  = lazyregexp.New(`^[a-zA-Z0-9_][a-zA-Z0-9_\-+.]*$`)
)

// formats are the rules of named string formats.
var formats = map[string]func(value string) error{
	"pve-storage-id": matching(`[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]`),
	"pve-poolid":     matching(`[A-Za-z0-9_.-]+`),
	"pve-node":       matching(`[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?`),
	"dns-name": func(value string) error {
		if !dnsName.MatchString(value) {
			return fmt.Errorf("invalid format - value does not look like a valid DNS name")
		}
		return nil
	},
	"pve-configid":      checkConfigID,
	"pve-configid-list": each(checkConfigID),
	"address-list": each(func(address string) error {
		if _, err := netip.ParseAddr(address); err != nil && !dnsName.MatchString(address) {
			return fmt.Errorf("invalid format - value does not look like a valid address: %s", address)
		}
		return nil
	}),
	"pve-tag-list": each(func(tag string) error {
		if !tagName.MatchString(tag) {
			return fmt.Errorf("invalid format - invalid characters in tag")
		}
		return nil
	}),
}

func matching(pattern string) func(string) error {
	expression := lazyregexp.New("^(?:" + pattern + ")$")
	return func(value string) error {
		if !expression.MatchString(value) {
			return errPattern
		}
		return nil
	}
}

// checkConfigID is the rule for names of a config's sections, that is, of snapshots.
func checkConfigID(value string) error {
	if !configID.MatchString(value) {
		return fmt.Errorf("invalid format - invalid configuration ID '%s'", value)
	}
	return nil
}

// each applies a rule to every part of a list.
func each(check func(string) error) func(string) error {
	return func(value string) error {
		for _, part := range splitList(value) {
			if err := check(part); err != nil {
				return err
			}
		}
		return nil
	}
}

// splitList splits a list; PVE separates by ; , and blanks.
func splitList(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(";, \x00", r) })
}
