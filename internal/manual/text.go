package manual

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/yuin/goldmark/ast"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

// Text renders a document as plain text, wrapped at the given column. A table becomes a list: the first
// cell of each row, with the others below it. A link to another document says how to read that document.
func Text(t Topic, columns int) string {
	p := printer{source: []byte(t.Text), columns: max(columns, 40)}
	p.blocks(markdown().Parser().Parse(text.NewReader(p.source)), "")
	return strings.TrimSpace(p.out.String()) + "\n"
}

// narrowColumn is the widest first column that leaves room for a second one.
const narrowColumn = 20

type printer struct {
	source  []byte
	columns int
	out     strings.Builder
}

// blocks prints the blocks in a node, each line indented, with an empty line after each block.
func (p *printer) blocks(parent ast.Node, indent string) {
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Heading:
			title := p.inline(n)
			if n.Level == 1 {
				title = strings.ToUpper(title)
			}
			underline := map[int]string{1: "=", 2: "-"}[n.Level]
			p.out.WriteString(title + "\n" + strings.Repeat(underline, utf8.RuneCountInString(title)) + "\n")
			if underline != "" {
				p.out.WriteString("\n")
			}
		case *ast.FencedCodeBlock:
			for i := range n.Lines().Len() {
				line := n.Lines().At(i)
				p.out.WriteString(indent + "    " + string(line.Value(p.source)))
			}
			p.out.WriteString("\n")
		case *ast.List:
			number := n.Start
			for item := n.FirstChild(); item != nil; item = item.NextSibling() {
				mark := "- "
				if n.IsOrdered() {
					mark = fmt.Sprintf("%d. ", number)
					number++
				}
				p.wrap(indent+mark, indent+strings.Repeat(" ", len(mark)), p.inline(item))
			}
			p.out.WriteString("\n")
		case *east.Table:
			p.table(n, indent)
		case *ast.HTMLBlock:
		default:
			p.wrap(indent, indent, p.inline(n))
			p.out.WriteString("\n")
		}
	}
}

// table prints each row as its first cell, followed by the others with the names of their columns.
// Two columns are printed side by side if the first is narrow.
func (p *printer) table(table *east.Table, indent string) {
	var rows [][]string
	narrow := 0
	for row := table.FirstChild(); row != nil; row = row.NextSibling() {
		var cells []string
		for cell := row.FirstChild(); cell != nil; cell = cell.NextSibling() {
			cells = append(cells, p.inline(cell))
		}
		if rows = append(rows, cells); len(rows) > 1 {
			narrow = max(narrow, utf8.RuneCountInString(cells[0]))
		}
	}
	names := rows[0]
	for _, cells := range rows[1:] {
		if len(names) == 2 && narrow <= narrowColumn {
			gap := strings.Repeat(" ", narrow-utf8.RuneCountInString(cells[0])+2)
			p.wrap(indent+cells[0]+gap, indent+strings.Repeat(" ", narrow+2), cells[1])
			continue
		}
		p.wrap(indent, indent+"  ", cells[0])
		for i, cell := range cells[1:] {
			if cell == "" {
				continue
			}
			if len(names) > 2 {
				cell = names[i+1] + ": " + cell
			}
			p.wrap(indent+"    ", indent+"    ", cell)
		}
	}
	p.out.WriteString("\n")
}

// inline returns the text in a node, on one line.
func (p *printer) inline(parent ast.Node) string {
	var b strings.Builder
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Segment.Value(p.source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				b.WriteString(" ")
			}
		case *ast.Link:
			words := p.inline(n)
			topic, _, ok := topicLink(string(n.Destination))
			switch {
			case ok && words == topic:
				b.WriteString("linus help " + topic)
			case ok:
				b.WriteString(words + " (linus help " + topic + ")")
			default:
				b.WriteString(words)
			}
		case *ast.RawHTML:
		default:
			b.WriteString(p.inline(n))
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// wrap prints words in lines of at most p.columns; a longer word gets its own line.
func (p *printer) wrap(first, indent, words string) {
	line := first
	empty := true
	for word := range strings.FieldsSeq(words) {
		switch {
		case empty:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > p.columns:
			p.out.WriteString(line + "\n")
			line = indent + word
		default:
			line += " " + word
		}
		empty = false
	}
	p.out.WriteString(line + "\n")
}
