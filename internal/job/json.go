package job

import "encoding/json"

// JSON is the unread rest of valid JSON. Its methods do not check validity.
type JSON []byte

// Next returns the first character of the next value, or the character that ends the object or list.
func (j *JSON) Next() byte {
	for at, c := range *j {
		switch c {
		case ' ', '\t', '\n', '\r', ',', ':':
		default:
			*j = (*j)[at:]
			return c
		}
	}
	return 0
}

// Enter reports whether the next value is an object or list that begins with a character; its values
// come next then.
func (j *JSON) Enter(begin byte) bool { return j.pass(begin) }

// Leave reports whether the object or list ends here, with a character.
func (j *JSON) Leave(end byte) bool { return j.pass(end) }

func (j *JSON) pass(c byte) bool {
	if j.Next() != c {
		return false
	}
	*j = (*j)[1:]
	return true
}

// Text reads the next value, a string.
func (j *JSON) Text() (text string) {
	raw, escaped := j.Quoted()
	if escaped {
		_ = json.Unmarshal(raw, &text) // it is valid: there can be no error
		return text
	}
	return string(raw[1 : len(raw)-1])
}

// Quoted reads the next value, a string, as it is written, and reports whether it has escapes.
func (j *JSON) Quoted() (raw []byte, escaped bool) {
	j.Next()
	data := *j
	end := 1
	for ; data[end] != '"'; end++ {
		if data[end] == '\\' {
			escaped = true
			end++
		}
	}
	*j = data[end+1:]
	return data[:end+1], escaped
}

// Raw reads a value as it is written.
func (j *JSON) Raw() []byte {
	switch j.Next() {
	case '"':
		raw, _ := j.Quoted()
		return raw
	case '{', '[':
		all := *j
		for depth := 0; ; {
			switch j.Next() {
			case '"':
				j.Quoted()
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			default:
				j.Raw()
				continue
			}
			if *j = (*j)[1:]; depth == 0 {
				return all[:len(all)-len(*j)]
			}
		}
	}
	data := *j
	end := 0
	for end < len(data) && data[end] > ' ' && data[end] != ',' && data[end] != ']' && data[end] != '}' {
		end++
	}
	*j = data[end:]
	return data[:end]
}
