package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"

	"linus/internal/lazyregexp"
)

// Secret is a value that only Reveal shows.
type Secret struct{ value string }

const redacted = "[redacted]"

// Reveal returns the value itself.
func (s Secret) Reveal() string { return s.value }

// String hides the value.
func (s Secret) String() string {
	if s.value == "" {
		return ""
	}
	return redacted
}

// GoString hides the value from %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalJSON hides the value.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// Decode implements envconfig.Decoder.
func (s *Secret) Decode(value string) error {
	s.value = value
	return nil
}

// ByteSize is a number of bytes, written 10MB, 512K or 1048576.
type ByteSize int64

var byteSizeText = lazyregexp.New(`^([1-9][0-9]{0,9})(?:([KMG])B?)?$`)

// Bounds of every ByteSize.
const (
	minOutput = ByteSize(1 << 10)
	maxOutput = ByteSize(1 << 30)
)

// Decode parses the text; units are powers of 1024.
func (b *ByteSize) Decode(text string) error {
	m := byteSizeText.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("%q is not a size", text)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return fmt.Errorf("%q is not a size: %w", text, err)
	}
	*b = ByteSize(n << map[string]int{"": 0, "K": 10, "M": 20, "G": 30}[m[2]])
	if *b < minOutput || *b > maxOutput {
		return fmt.Errorf("%q is out of range 1KB to 1GB", text)
	}
	return nil
}
