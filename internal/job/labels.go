package job

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"linus/internal/lazyregexp"
)

// Bounds of labels.
const (
	MaxLabels = 16
	maxLabel  = 63 // bytes of a key, and characters of a value
)

var labelKey = lazyregexp.New(`^[a-z0-9]([a-z0-9._/-]*[a-z0-9])?$`)

const keyRule = "use lower-case letters, digits and ._/- between them, at most 63"

func validateLabels(labels map[string]string) []*FieldError {
	var bad []*FieldError
	if len(labels) > MaxLabels {
		return []*FieldError{field("manifest.labels", fmt.Sprintf("give at most %d", MaxLabels), "are %d", len(labels))}
	}
	for _, key := range sortedKeys(labels) {
		if !IsLabelKey(key) {
			bad = append(bad, field("manifest.labels", keyRule, "%.80q is not a label's key", key))
		} else if problem := labelProblem(labels[key]); problem != "" {
			bad = append(bad, field("manifest.labels."+key, "give at most 63 printable characters", "%s", problem))
		}
	}
	return bad
}

// IsLabelKey reports whether a text can be the key of a label.
func IsLabelKey(text string) bool { return fits(labelKey, text, maxLabel) }

// MaxMetricLabels bounds the label keys that metrics have, too.
const MaxMetricLabels = 5

// MetricKey returns a label's key in the form metrics allow.
func MetricKey(key string) string {
	return strings.NewReplacer(".", "_", "/", "_", "-", "_").Replace(key)
}

func labelProblem(value string) string {
	switch n := utf8.RuneCountInString(value); {
	case n > maxLabel:
		return fmt.Sprintf("is %d characters", n)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "has a character that cannot be printed"
	}
	return ""
}

// LabelTexts returns labels as KEY=VALUE, in the order of their keys.
func LabelTexts(labels map[string]string) []string {
	var texts []string
	for _, key := range sortedKeys(labels) {
		texts = append(texts, key+"="+labels[key])
	}
	return texts
}

// CheckLabels returns a *FieldError if a list cannot be filtered by these labels, each as KEY=VALUE.
func CheckLabels(wanted []string) error {
	if len(wanted) > MaxLabels {
		return field("label", fmt.Sprintf("give at most %d", MaxLabels), "is given %d times", len(wanted))
	}
	for _, text := range wanted {
		key, value, pair := strings.Cut(text, "=")
		switch {
		case !pair:
			return field("label", "give KEY=VALUE, as in team=web", "%.80q has no value", text)
		case !IsLabelKey(key):
			return field("label", keyRule, "%.80q is not a label's key", key)
		case labelProblem(value) != "":
			return field("label", "give a value of at most 63 printable characters", "the value of %s %s", key, labelProblem(value))
		}
	}
	return nil
}

// hasLabels reports whether labels include all wanted ones.
func hasLabels(labels map[string]string, wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(text string) bool {
		key, value, _ := strings.Cut(text, "=")
		has, there := labels[key]
		return !there || has != value
	})
}
