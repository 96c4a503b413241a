package job

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// DecodeManifest decodes a manifest strictly and validates it. An unknown key at any level is
// refused, with the nearest known key as a suggestion; a wrong type is reported with its field. All
// errors are *InvalidError.
func DecodeManifest(data []byte) (Manifest, error) {
	var m Manifest
	tree, err := DecodeStrict("manifest", data, &m)
	if err != nil {
		return Manifest{}, err
	}
	return m, m.Check(tree)
}

// Check reports everything wrong with a manifest that DecodeStrict decoded, as an *InvalidError.
// tree is the manifest's JSON.
func (m Manifest) Check(tree any) error {
	if bad := explicitZeros("manifest", tree, reflect.TypeFor[Manifest]()); len(bad) > 0 {
		return &InvalidError{Fields: bad}
	}
	return m.Validate()
}

// DecodeStrict decodes JSON into v, a pointer to a struct, and refuses what encoding/json accepts:
// unknown keys, keys in the wrong case, duplicate keys, and text that decoding would change. A field
// may also have the other name from its api tag: agent_type for agentType. Each field's path begins
// with name, which may be empty. DecodeStrict also returns the JSON as encoding/json decodes it into
// an any, with numbers as json.Number.
func DecodeStrict(name string, data []byte, v any) (tree any, err error) {
	return decode(name, data, reflect.TypeOf(v).Elem(), func(any, reflect.Type) {}, func(data []byte) error { return json.Unmarshal(data, v) })
}

// DecodeStrictAs is DecodeStrict for JSON that has the shape of struct type t but is decoded by read.
func DecodeStrictAs(t reflect.Type, data []byte, read func(data []byte) error) (tree any, err error) {
	return decode("", data, t, func(any, reflect.Type) {}, read)
}

// DecodeCall is DecodeStrict for the arguments of a call, in which null means that an optional
// argument is not given.
func DecodeCall(name string, data []byte, v any) (tree any, err error) {
	return decode(name, data, reflect.TypeOf(v).Elem(), dropNulls, func(data []byte) error { return json.Unmarshal(data, v) })
}

func decode(name string, data []byte, t reflect.Type, change func(tree any, t reflect.Type), read func([]byte) error) (tree any, err error) {
	if !json.Valid(data) {
		err := json.Unmarshal(data, new(json.RawMessage)) // says what is wrong
		return nil, invalid(field(name, "give one JSON object", "is not valid JSON: %v", err))
	}
	if !utf8.Valid(data) || hasLoneSurrogate(data) {
		return nil, invalid(field(name, "send UTF-8, and put binary content into files", "has text that is not Unicode"))
	}
	tree, twice, changed := readTree(name, data)
	if len(twice) > 0 {
		return nil, &InvalidError{Fields: twice}
	}
	change(tree, t)
	if changed {
		if data, err = json.Marshal(tree); err != nil {
			return nil, invalid(field(name, "", "%v", err))
		}
	}
	if bad := checkShape(name, tree, t); len(bad) > 0 {
		return nil, &InvalidError{Fields: bad}
	}
	if rename(tree, t) {
		renamed, err := json.Marshal(tree)
		if err != nil {
			return nil, invalid(field(name, "", "%v", err))
		}
		tree, _, _ = readTree(name, data) // with the caller's names
		data = renamed
	}
	err = read(data)
	var typeErr *json.UnmarshalTypeError
	switch {
	case errors.As(err, &typeErr):
		return nil, invalid(field(below(name, typeErr.Field), "", "is %s, want %s", typeErr.Value, typeErr.Type))
	case err != nil:
		return nil, invalid(field(name, "", "%v", err))
	}
	return tree, nil
}

// dropNulls removes null values of optional fields from JSON meant for type t.
func dropNulls(tree any, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch value := tree.(type) {
	case map[string]any:
		if t.Kind() == reflect.Map {
			for _, inner := range value {
				dropNulls(inner, t.Elem())
			}
		}
		if t.Kind() != reflect.Struct {
			return
		}
		fields := fieldsOf(t)
		for key, inner := range value {
			f, known := fields[key]
			if known && inner == nil && f.omitted {
				delete(value, key)
			} else if known {
				dropNulls(inner, f.of)
			}
		}
	case []any:
		if t.Kind() == reflect.Slice {
			for _, inner := range value {
				dropNulls(inner, t.Elem())
			}
		}
	}
}

// whole converts a whole number written with a point or an exponent, as some programs do, to plain digits.
func whole(n json.Number) (json.Number, bool) {
	if !strings.ContainsAny(n.String(), ".eE") {
		return n, false
	}
	f, err := n.Float64()
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return n, false
	}
	return json.Number(strconv.FormatInt(int64(f), 10)), true
}

// trail is the path of the value under inspection. It becomes a string only when needed.
type trail struct{ path []byte }

// to appends a key and returns the previous length, for back.
func (t *trail) to(key string) (before int) {
	before = len(t.path)
	if before > 0 {
		t.path = append(t.path, '.')
	}
	t.path = append(t.path, key...)
	return before
}

// at appends a list index.
func (t *trail) at(i int) (before int) {
	before = len(t.path)
	t.path = append(strconv.AppendInt(append(t.path, '['), int64(i), 10), ']')
	return before
}

func (t *trail) back(before int) { t.path = t.path[:before] }

func (t *trail) String() string { return string(t.path) }

// readTree decodes valid JSON as encoding/json does into an any, with numbers as json.Number, and
// finds duplicate keys. If changed is set, the caller must decode the tree instead of data.
func readTree(name string, data []byte) (tree any, twice []*FieldError, changed bool) {
	r := treeReader{JSON: data, trail: trail{[]byte(name)}}
	tree = r.read()
	return tree, r.twice, r.changed
}

type treeReader struct {
	JSON
	trail

	twice   []*FieldError
	changed bool
}

func (r *treeReader) read() any {
	switch r.Next() {
	case '{':
		r.Enter('{')
		object := map[string]any{}
		for !r.Leave('}') {
			key := r.Text()
			before := r.to(key)
			if _, ok := object[key]; ok {
				r.twice = append(r.twice, field(r.String(), "give it once", "is given twice"))
			}
			object[key] = r.read()
			r.back(before)
		}
		return object
	case '[':
		r.Enter('[')
		list := []any{}
		for !r.Leave(']') {
			before := r.at(len(list))
			list = append(list, r.read())
			r.back(before)
		}
		return list
	case '"':
		return r.Text()
	case 't':
		r.Raw()
		return true
	case 'f':
		r.Raw()
		return false
	case 'n':
		r.Raw()
		return nil
	}
	n, other := whole(json.Number(r.Raw()))
	r.changed = r.changed || other
	return n
}

// hasLoneSurrogate reports whether valid JSON has a \uXXXX escape that is half of a pair:
// encoding/json would replace it with another character.
func hasLoneSurrogate(data []byte) bool {
	unit := func(i int) rune { // the code unit of an escape at i, else 0
		if i+6 > len(data) || data[i] != '\\' || data[i+1] != 'u' {
			return 0
		}
		n, _ := strconv.ParseUint(string(data[i+2:i+6]), 16, 16)
		return rune(n)
	}
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		if r := unit(i); utf16.IsSurrogate(r) {
			if utf16.DecodeRune(r, unit(i+6)) == utf8.RuneError {
				return true
			}
			i += 6 // the first half; the next increment skips the second
		}
		i++ // the escaped character, which may be another backslash
	}
	return false
}

func invalid(f *FieldError) *InvalidError { return &InvalidError{Fields: []*FieldError{f}} }

// checkShape checks decoded JSON against the Go type it is meant for.
func checkShape(at string, v any, t reflect.Type) []*FieldError {
	c := shapeCheck{trail: trail{[]byte(at)}}
	c.check(v, t)
	return c.bad
}

type shapeCheck struct {
	trail

	bad []*FieldError
}

func (c *shapeCheck) refuse(remedy, problem string, args ...any) {
	c.bad = append(c.bad, field(c.String(), remedy, problem, args...))
}

func (c *shapeCheck) mismatch(v any, want string) {
	c.refuse("", "is %s, want %s", jsonKind(v), want)
}

func (c *shapeCheck) check(v any, t reflect.Type) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if isText(t) {
		if _, ok := v.(string); !ok && (v != nil || t.Kind() != reflect.Slice) { // Go writes null for no bytes
			c.mismatch(v, "a string")
		}
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		if object, ok := v.(map[string]any); ok {
			c.checkObject(object, t)
		} else {
			c.mismatch(v, "an object")
		}
	case reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			c.mismatch(v, "an array")
		}
		for i, e := range list {
			before := c.at(i)
			c.check(e, t.Elem())
			c.back(before)
		}
	case reflect.Map:
		object, ok := v.(map[string]any)
		if !ok {
			c.mismatch(v, "an object")
		}
		for _, k := range sortedKeys(object) {
			before := c.to(k)
			c.check(object[k], t.Elem())
			c.back(before)
		}
	case reflect.String:
		if _, ok := v.(string); !ok {
			c.mismatch(v, "a string")
		}
	case reflect.Int, reflect.Int64:
		n, ok := v.(json.Number)
		if !ok {
			c.mismatch(v, "a whole number")
		} else if _, err := strconv.ParseInt(n.String(), 10, 64); err != nil {
			c.refuse("", "%s is not a whole number", n)
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			c.mismatch(v, "true or false")
		}
	}
}

func (c *shapeCheck) checkObject(object map[string]any, t reflect.Type) {
	fields := fieldsOf(t)
	for _, k := range sortedKeys(object) {
		before := c.to(k)
		f, known := fields[k]
		_, twice := object[f.name]
		switch {
		case !known:
			c.refuse(DidYouMean(k, names(t)), "is not a known key")
		case f.name != k && twice:
			c.refuse("give one of the two", "is %s by another name", f.name)
		default:
			c.check(object[k], f.of)
		}
		c.back(before)
	}
}

// isText reports whether encoding/json writes a type that is not a string kind as a string.
func isText(t reflect.Type) bool {
	if is, found := texts.Load(t); found {
		return is == true
	}
	is := t == reflect.TypeFor[[]byte]() || reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	texts.Store(t, is)
	return is
}

// texts and shapes cache what reflect says of types, which never changes. Looking it up again on
// each call took a third of a submission's CPU time.
var texts, shapes sync.Map

// fields returns the JSON keys of a struct type and their fields, those of embedded structs included.
func fields(t reflect.Type) iter.Seq2[string, reflect.StructField] {
	return func(yield func(string, reflect.StructField) bool) {
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous && name == "" {
				for name, inner := range fields(f.Type) {
					if !yield(name, inner) {
						return
					}
				}
				continue
			}
			if name != "-" && !yield(name, f) {
				return
			}
		}
	}
}

// jsonField is a field of a struct in JSON.
type jsonField struct {
	name    string // its main name
	of      reflect.Type
	omitted bool // it is optional: null means that it is left out
}

// fieldsOf returns the fields of a struct by their main and other names.
func fieldsOf(t reflect.Type) map[string]jsonField {
	if found, ok := shapes.Load(t); ok {
		return found.(map[string]jsonField) //nolint:forcetypeassert // nothing else is stored
	}
	all, others := map[string]jsonField{}, map[string]jsonField{}
	for name, f := range fields(t) {
		_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		known := jsonField{name, f.Type, f.Type.Kind() == reflect.Pointer || strings.Contains(options, "omit")}
		if _, before := all[name]; !before {
			all[name] = known
		}
		if other, _, _ := strings.Cut(f.Tag.Get("api"), ","); other != "" && other != "-" {
			others[other] = known
		}
	}
	for other, known := range others {
		if _, own := all[other]; !own {
			all[other] = known
		}
	}
	shapes.Store(t, all)
	return all
}

// names returns the main names of a struct's fields, in order.
func names(t reflect.Type) (known []string) {
	for name := range fields(t) {
		known = append(known, name)
	}
	return known
}

// rename replaces other names by main names in a value that passed checkShape, and reports whether
// there were any.
func rename(v any, t reflect.Type) (renamed bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if isText(t) {
		return false
	}
	switch t.Kind() {
	case reflect.Struct:
		object, _ := v.(map[string]any)
		fields := fieldsOf(t)
		for k, value := range object {
			f := fields[k]
			renamed = rename(value, f.of) || renamed
			if f.name != k {
				object[f.name], renamed = value, true
				delete(object, k)
			}
		}
	case reflect.Slice:
		list, _ := v.([]any)
		for _, e := range list {
			renamed = rename(e, t.Elem()) || renamed
		}
	case reflect.Map:
		object, _ := v.(map[string]any)
		for _, e := range object {
			renamed = rename(e, t.Elem()) || renamed
		}
	}
	return renamed
}

func jsonKind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "an object"
	case []any:
		return "an array"
	case string:
		return "a string"
	case json.Number:
		return "a number"
	default:
		return "a boolean"
	}
}

// below returns the path of key under at, which may be empty.
func below(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

// DidYouMean suggests the known key that was probably meant; it returns "" if there are no known keys.
func DidYouMean(key string, known []string) string {
	if len(known) == 0 {
		return ""
	}
	return fmt.Sprintf("did you mean %q?", meant(key, known))
}

// meant returns the key the caller most likely meant: the one that key abbreviates (mem), else the nearest.
func meant(key string, known []string) string {
	for _, k := range known {
		if len(key) >= 3 && strings.HasPrefix(strings.ToLower(k), strings.ToLower(key)) {
			return k
		}
	}
	near, _ := Nearest(key, known)
	return near
}

// Nearest returns the known key with the smallest edit distance to key, ignoring case, and that distance.
func Nearest(key string, known []string) (best string, distance int) {
	distance = 1 << 30
	lower, n := strings.ToLower(key), min(len(key), maxCompared)
	for _, k := range known {
		if max(n, len(k))-min(n, len(k)) >= distance {
			continue // the lengths alone differ by that much
		}
		if d := editDistance(lower, strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	return best, distance
}

// maxCompared is how many bytes of a key are compared.
const maxCompared = 64

// editDistance is the Levenshtein distance, by bytes; keys are short ASCII words.
func editDistance(a, b string) int {
	a = a[:min(len(a), maxCompared)]
	var short [maxCompared + 1]int // on the stack for most keys: all variables are compared at each start
	row := append(short[:0], make([]int, len(b)+1)...)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
