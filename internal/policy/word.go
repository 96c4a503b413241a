package policy

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// word is a word of a command as far as it is known before the command runs.
type word struct {
	text    string // the word, or its beginning if not literal
	literal bool   // text is the whole word
	single  bool   // it becomes exactly one word, whatever its value
	param   string // it is the value of this parameter and nothing else: $x, "$x"
}

func literal(text string) word { return word{text: text, literal: true, single: true} }

// readWord removes quotes and notes what the shell would expand.
func readWord(w *syntax.Word) word {
	if w.Lit() == "[" { // the command, not the beginning of a pattern
		return literal("[")
	}
	r := wordReader{literal: true, single: true}
	for i, part := range w.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			r.unquoted(part.Value, i == 0)
		case *syntax.SglQuoted:
			if part.Dollar && strings.Contains(part.Value, `\`) {
				r.computed(true)
			}
			r.add(part.Value)
		case *syntax.DblQuoted:
			r.quoted(part)
		default:
			r.computed(false)
		}
	}
	// A brace expansion may span several parts.
	if _, after, ok := strings.Cut(string(r.bare), "{"); ok && (strings.Contains(after, ",") || strings.Contains(after, "..")) {
		return word{}
	}
	return word{text: string(r.text), literal: r.literal, single: r.single, param: plainParam(w.Parts)}
}

// plainParam returns the name of the parameter that makes up a whole word, ""
// if there is none.
func plainParam(parts []syntax.WordPart) string {
	if len(parts) != 1 {
		return ""
	}
	switch part := parts[0].(type) {
	case *syntax.DblQuoted:
		return plainParam(part.Parts)
	case *syntax.ParamExp:
		if isPlain(part) {
			return part.Param.Value
		}
	}
	return ""
}

// isPlain reports whether p is $x or ${x}, with no operation on the value.
func isPlain(p *syntax.ParamExp) bool {
	return p.Param != nil && p.Index == nil && !p.Excl && !p.Length && !p.Width && p.Slice == nil && p.Repl == nil && p.Names == 0 && p.Exp == nil
}

// wordReader assembles a word.
type wordReader struct {
	text            []byte
	literal, single bool
	bare            []byte // what is outside quotes
}

// add appends text, as long as all before it was literal.
func (r *wordReader) add(text string) {
	if r.literal {
		r.text = append(r.text, text...)
	}
}

// computed notes a part whose value is only known when the command runs.
func (r *wordReader) computed(single bool) {
	r.literal = false
	r.single = r.single && single
}

func (r *wordReader) unquoted(text string, first bool) {
	if first && strings.HasPrefix(text, "~") {
		r.computed(true)
	}
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
			r.add(text[i : i+1])
			continue
		}
		if strings.IndexByte("*?[", text[i]) >= 0 {
			r.computed(false)
		}
		r.add(text[i : i+1])
		r.bare = append(r.bare, text[i])
	}
}

func (r *wordReader) quoted(q *syntax.DblQuoted) {
	if q.Dollar { // translated
		r.computed(true)
	}
	for _, part := range q.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			for text := part.Value; text != ""; {
				if len(text) > 1 && text[0] == '\\' && strings.IndexByte("$`\"\\", text[1]) >= 0 {
					text = text[1:]
				}
				r.add(text[:1])
				text = text[1:]
			}
		case *syntax.ParamExp:
			// "$@" and "${a[@]}" are as many words as there are values.
			plain := part.Param != nil && part.Param.Value != "@" && part.Index == nil && !part.Excl && part.Names == 0 && part.Exp == nil
			r.computed(plain)
		default:
			r.computed(true)
		}
	}
}
