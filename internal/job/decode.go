package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// DecodeManifest reads a manifest strictly and validates it: an unknown key at
// any level is refused with the nearest known one, a wrong type is named by
// its field. All complaints are *InvalidError.
func DecodeManifest(data []byte) (Manifest, error) {
	var m Manifest
	if err := DecodeStrict("manifest", data, &m); err != nil {
		return Manifest{}, err
	}
	if err := explicitZeros(data); err != nil {
		return Manifest{}, err
	}
	return m, m.Validate()
}

// DecodeStrict reads JSON into v, a pointer to a struct, and refuses what
// encoding/json lets pass: unknown keys, keys in the wrong case, duplicate
// values, trailing data. name is the path to put before each field; it may be
// empty.
func DecodeStrict(name string, data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return invalid(field(name, "give a JSON object", "is not valid JSON: %v", err))
	}
	if dec.More() {
		return invalid(field(name, "give one JSON object", "has data after the JSON object"))
	}
	if bad := checkShape(name, tree, reflect.TypeOf(v).Elem()); len(bad) > 0 {
		return &InvalidError{Fields: bad}
	}
	err := json.Unmarshal(data, v)
	var typeErr *json.UnmarshalTypeError
	switch {
	case errors.As(err, &typeErr):
		return invalid(field(name+"."+typeErr.Field, "", "is %s, want %s", typeErr.Value, typeErr.Type))
	case err != nil:
		return invalid(field(name, "", "%v", err))
	}
	return nil
}

// explicitZeros refuses values that are given but read like "use the default":
// timeout 0 and cpu 0 are mistakes, not defaults.
func explicitZeros(data []byte) error {
	var given struct {
		Timeout   *int
		Resources struct{ CPU *int }
	}
	if err := json.Unmarshal(data, &given); err != nil {
		return invalid(field("manifest", "", "%v", err))
	}
	if given.Timeout != nil && *given.Timeout == 0 {
		return invalid(field("manifest.timeout", "give seconds from 1 to 86400", "0 is out of range"))
	}
	if given.Resources.CPU != nil && *given.Resources.CPU == 0 {
		return invalid(field("manifest.resources.cpu", "give 1 to 32", "0 is out of range"))
	}
	return nil
}

func invalid(f *FieldError) *InvalidError { return &InvalidError{Fields: []*FieldError{f}} }

// checkShape compares decoded JSON with the Go type it is meant for.
func checkShape(at string, v any, t reflect.Type) []*FieldError {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	mismatch := func(want string) []*FieldError {
		return []*FieldError{field(at, "", "is %s, want %s", jsonKind(v), want)}
	}
	switch t.Kind() {
	case reflect.Struct:
		object, ok := v.(map[string]any)
		if !ok {
			return mismatch("an object")
		}
		return checkObject(at, object, t)
	case reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			return mismatch("an array")
		}
		var bad []*FieldError
		for i, e := range list {
			bad = append(bad, checkShape(fmt.Sprintf("%s[%d]", at, i), e, t.Elem())...)
		}
		return bad
	case reflect.Map:
		object, ok := v.(map[string]any)
		if !ok {
			return mismatch("an object")
		}
		var bad []*FieldError
		for k, e := range object {
			bad = append(bad, checkShape(below(at, k), e, t.Elem())...)
		}
		return bad
	case reflect.String:
		if _, ok := v.(string); !ok {
			return mismatch("a string")
		}
	case reflect.Int, reflect.Int64:
		n, ok := v.(json.Number)
		if !ok {
			return mismatch("a whole number")
		}
		if _, err := strconv.ParseInt(n.String(), 10, 64); err != nil {
			return []*FieldError{field(at, "", "%s is not a whole number", n)}
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			return mismatch("true or false")
		}
	}
	return nil
}

func checkObject(at string, object map[string]any, t reflect.Type) []*FieldError {
	var known []string
	types := map[string]reflect.Type{}
	for f := range fields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		known = append(known, name)
		types[name] = f.Type
	}
	var keys []string
	for k := range object {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var bad []*FieldError
	for _, k := range keys {
		ft, ok := types[k]
		if !ok {
			near, _ := Nearest(k, known)
			bad = append(bad, field(below(at, k), fmt.Sprintf("did you mean %q?", near), "is not a known key"))
			continue
		}
		bad = append(bad, checkShape(below(at, k), object[k], ft)...)
	}
	return bad
}

func fields(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
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

// below is the path of key under at; the top may be nameless.
func below(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

// Nearest finds the known key with the smallest edit distance to key, ignoring
// case, and that distance.
func Nearest(key string, known []string) (best string, distance int) {
	distance = 1 << 30
	for _, k := range known {
		if d := editDistance(strings.ToLower(key), strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	return best, distance
}

// editDistance is the Levenshtein distance, by bytes; keys are short ASCII words.
func editDistance(a, b string) int {
	a = a[:min(len(a), 64)]
	row := make([]int, len(b)+1)
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
