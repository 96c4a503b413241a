package term

import (
	"strconv"
	"strings"
)

// paint sets the style of the following characters.
func (s *Screen) paint(args string) {
	var codes []int
	for _, word := range strings.FieldsFunc(args+";", func(r rune) bool { return r == ';' || r == ':' }) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return // a private sequence
		}
		codes = append(codes, n)
	}
	if len(codes) == 0 {
		codes = []int{0}
	}
	look := &s.style
	for i := 0; i < len(codes); i++ {
		switch c := codes[i]; {
		case c == 0:
			*look = Style{}
		case c == 1:
			look.Bold = true
		case c == 2:
			look.Dim = true
		case c == 3:
			look.Italic = true
		case c == 4:
			look.Underline = true
		case c == 7:
			look.Inverse = true
		case c == 22:
			look.Bold, look.Dim = false, false
		case c == 23:
			look.Italic = false
		case c == 24:
			look.Underline = false
		case c == 27:
			look.Inverse = false
		case c >= 30 && c <= 37:
			look.FG = uint8(c - 30 + 1)
		case c >= 90 && c <= 97:
			look.FG = uint8(c - 90 + 9)
		case c >= 40 && c <= 47:
			look.BG = uint8(c - 40 + 1)
		case c >= 100 && c <= 107:
			look.BG = uint8(c - 100 + 9)
		case c == 39:
			look.FG = 0
		case c == 49:
			look.BG = 0
		case c == 38 || c == 48:
			colour, used := extended(codes[i+1:])
			if c == 38 {
				look.FG = colour
			} else {
				look.BG = colour
			}
			i += used
		}
	}
}

// extended reads the rest of "38;5;N" or "38;2;R;G;B". It returns the nearest of the sixteen
// colours, and the number of codes used.
func extended(codes []int) (colour uint8, used int) {
	switch {
	case len(codes) >= 2 && codes[0] == 5:
		n := codes[1]
		switch {
		case n < 0 || n > 255:
			return 0, 2
		case n < 16:
			return uint8(n + 1), 2
		case n < 232: // a cube of 6 by 6 by 6
			n -= 16
			return nearest(n/36*51, n/6%6*51, n%6*51), 2
		}
		grey := (n-232)*10 + 8
		return nearest(grey, grey, grey), 2
	case len(codes) >= 4 && codes[0] == 2:
		return nearest(codes[1], codes[2], codes[3]), 4
	}
	return 0, len(codes)
}

// nearest returns the closest of the sixteen colours.
func nearest(r, g, b int) uint8 {
	high := max(r, g, b)
	switch {
	case high < 48:
		return 1 // black
	case high-min(r, g, b) < 32: // a grey
		return map[bool]uint8{true: 16, false: 9}[high > 160]
	}
	colour := uint8(1)
	for i, v := range []int{r, g, b} {
		if v > high/2 {
			colour += 1 << i
		}
	}
	if high > 210 {
		colour += 8
	}
	return colour
}
