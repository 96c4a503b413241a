package pve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// printPretty writes JSON as Perl's pretty, canonical JSON does: keys sorted,
// three blanks deep, ` : ` between key and value.
func printPretty(w io.Writer, value any) error {
	var b strings.Builder
	prettyValue(&b, plain(value), "")
	_, err := fmt.Fprintln(w, b.String())
	return err
}

// printCompact writes JSON in one line, keys sorted.
func printCompact(w io.Writer, value any) error {
	raw, err := marshal(plain(value))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", raw)
	return err
}

// marshal is json.Marshal without HTML escapes. Bytes that are no UTF-8 become
// the characters of the same number, as they do in Perl.
func marshal(value any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// plain brings a value to what encoding/json decodes: maps, lists and scalars.
func plain(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, item := range v {
			out[key] = plain(item)
		}
		return out
	case map[string]string:
		out := map[string]any{}
		for key, item := range v {
			out[key] = plain(item)
		}
		return out
	case []map[string]any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = plain(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = plain(item)
		}
		return out
	case string:
		if utf8.ValidString(v) {
			return v
		}
		runes := make([]rune, 0, len(v))
		for _, c := range []byte(v) {
			runes = append(runes, rune(c))
		}
		return string(runes)
	}
	return value
}

func prettyValue(b *strings.Builder, value any, indent string) {
	deeper := indent + "   "
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 {
			b.WriteString("{}")
			return
		}
		b.WriteString("{\n")
		for i, key := range sortedAnyKeys(v) {
			if i > 0 {
				b.WriteString(",\n")
			}
			raw, _ := marshal(key) // a string always marshals
			fmt.Fprintf(b, "%s%s : ", deeper, raw)
			prettyValue(b, v[key], deeper)
		}
		b.WriteString("\n" + indent + "}")
	case []any:
		if len(v) == 0 {
			b.WriteString("[]")
			return
		}
		b.WriteString("[\n")
		for i, item := range v {
			if i > 0 {
				b.WriteString(",\n")
			}
			b.WriteString(deeper)
			prettyValue(b, item, deeper)
		}
		b.WriteString("\n" + indent + "]")
	default:
		raw, err := marshal(v)
		if err != nil {
			raw = []byte("null")
		}
		b.Write(raw)
	}
}

// printTable writes an API answer for people: a list of objects as columns, an
// object as key and value.
func printTable(w io.Writer, value any) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	switch v := plain(value).(type) {
	case map[string]any:
		fmt.Fprintln(tw, "key\tvalue")
		for _, key := range sortedAnyKeys(v) {
			fmt.Fprintf(tw, "%s\t%s\n", key, cell(v[key]))
		}
	case []any:
		columns := tableColumns(v)
		fmt.Fprintln(tw, strings.Join(columns, "\t"))
		for _, row := range v {
			object, _ := row.(map[string]any)
			cells := make([]string, len(columns))
			for i, column := range columns {
				cells[i] = cell(object[column])
			}
			fmt.Fprintln(tw, strings.Join(cells, "\t"))
		}
	default:
		fmt.Fprintln(tw, cell(v))
	}
	return tw.Flush()
}

func tableColumns(rows []any) []string {
	var columns []string
	for _, row := range rows {
		object, _ := row.(map[string]any)
		for key := range object {
			if !slices.Contains(columns, key) {
				columns = append(columns, key)
			}
		}
	}
	sort.Strings(columns)
	return columns
}

func cell(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case map[string]any, []any:
		raw, err := marshal(v)
		if err != nil {
			return ""
		}
		return string(raw)
	}
	return fmt.Sprint(value)
}

func sortedAnyKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
