package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"linus/internal/job"
)

// Setting is one row of the table of settings.
type Setting struct{ Name, Default, Text string }

// Table lists every setting in order, for the documents, .env.example and help.
func Table() []Setting { return slices.Clone(table()) }

// table is computed once, because each start of linus asks for it several times.
var table = sync.OnceValue(func() (rows []Setting) {
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		if name := tag.Get("envconfig"); name != "" {
			rows = append(rows, Setting{Name: name, Default: tag.Get("default"), Text: tag.Get("desc")})
		}
	}
	return rows
})

// settingNames returns the names of Table.
func settingNames() []string {
	var names []string
	for _, s := range table() {
		names = append(names, s.Name)
	}
	return names
}

// misspelt finds variables that look like settings of linus but are not: they have a prefix of one,
// and differ from it in a letter or two. Other programs may use these prefixes, too, so names that
// differ more are ignored.
func misspelt(environ []string) []Problem {
	names := settingNames()
	var prefixes []string
	for _, name := range names {
		prefix, _, _ := strings.Cut(name, "_")
		prefixes = append(prefixes, strings.ToLower(prefix)) // compared without case below, for each variable
	}
	slices.Sort(prefixes)
	prefixes = slices.Compact(prefixes)
	var problems []Problem
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if slices.Contains(names, name) || strings.HasPrefix(name, secretPrefix) {
			continue
		}
		prefix, _, _ := strings.Cut(name, "_")
		if _, away := job.Nearest(prefix, prefixes); away > 1 {
			continue
		}
		near, distance := job.Nearest(name, names)
		if distance == 1 || (distance == 2 && len(near) > 10) {
			problems = append(problems, Problem{
				Name: name, Text: "is not a setting",
				Remedy: fmt.Sprintf("did you mean %s?", near), From: fromEnvironment,
			})
		}
	}
	return problems
}
