package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/manual"
)

// helpColumns is the maximum width of wrapped text: longer lines are hard to read.
const helpColumns = 100

// helpCommand shows documents, in addition to what every command's --help shows.
func (a *app) helpCommand() *cobra.Command {
	var list bool
	cmd := &cobra.Command{
		Use:   "help [TOPIC|COMMAND...]",
		Short: "Show a document, or the help of a command",
		Long: "Shows one of the documents that come with linus, or, like --help, the options of a command. Where a topic has the name of a\n" +
			"command (scripts), the document is shown.\n\nTopics:\n" + topicList(),
		Example: "  linus help --list\n  linus help settings | less\n  linus help job submit",
		Args: func(_ *cobra.Command, args []string) error {
			if list && len(args) > 0 {
				return usage("--list takes no topic")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case list:
				return a.printTopics()
			case len(args) == 0:
				return cmd.Root().Help()
			}
			return a.help(cmd.Root(), args)
		},
		ValidArgsFunction: completeHelp,
	}
	cmd.Flags().BoolVar(&list, "list", false, "list the topics")
	return cmd
}

// help shows the document of a topic or, if there is none, the help of a command.
func (a *app) help(root *cobra.Command, args []string) error {
	if topic, ok := manual.Find(args[0]); ok && len(args) == 1 {
		if a.json {
			return a.printJSON(topic)
		}
		return a.print(nil, strings.TrimSuffix(manual.Text(topic, min(width(a.stdout), helpColumns)), "\n"))
	}
	if command, rest, err := root.Find(args); err == nil && len(rest) == 0 && command != root {
		command.InitDefaultHelpFlag()
		return command.Help()
	}
	hint := ""
	if near := nearTopics(root, args[0]); len(args) == 1 && len(near) > 0 {
		hint = fmt.Sprintf("did you mean %s? ", strings.Join(near, " or "))
	}
	if found := search(root, strings.Join(args, " ")); len(found) > 0 {
		return a.print(found, foundText(found))
	}
	return usage("no topic or command %q; %slinus help --list lists the topics", strings.Join(args, " "), hint)
}

// found is a command, or a part of a document, that matches a search.
type found struct {
	Help string `json:"help"` // the command that shows it
	Part string `json:"part"` // the heading, or what the command does
	hits int
}

// called maps common words to those that the documents use.
var called = map[string]string{"sso": "OpenID", "saml": "OpenID", "oidc": "OpenID", "vnc": "terminal", "novnc": "terminal", "screen": "terminal", "firewall": "egress"}

// mostFound limits how many matches a search shows.
const mostFound = 8

// search returns the commands and the parts of documents that contain a word, best matches first.
func search(root *cobra.Command, word string) (all []found) {
	word = strings.ToLower(cmp.Or(called[strings.ToLower(word)], word))
	has := func(text string) int { return strings.Count(strings.ToLower(text), word) }
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if n := 10*has(sub.Name()) + 3*has(sub.Short); n > 0 && sub.IsAvailableCommand() {
				all = append(all, found{sub.CommandPath() + " --help", sub.Short, n})
			}
			visit(sub)
		}
	}
	visit(root)
	for _, t := range manual.Topics() {
		at := found{Part: t.Summary}
		end := func() {
			if at.hits > 0 {
				at.Help = "linus help " + t.Topic
				all = append(all, at)
			}
		}
		for line := range strings.Lines(t.Text) {
			if head, ok := strings.CutPrefix(line, "#"); ok {
				end()
				at = found{Part: strings.TrimSpace(strings.TrimLeft(head, "#")), hits: 9 * has(head)}
			}
			at.hits += has(line)
		}
		end()
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(b.hits, a.hits) })
	return all[:min(len(all), mostFound)]
}

func foundText(all []found) string {
	return strings.TrimSuffix(details(func(_ io.Writer, row func(name, value string)) {
		for _, f := range all {
			row(f.Help, oneLine(f.Part, 100))
		}
	}), "\n")
}

func nearTopics(root *cobra.Command, word string) []string {
	words := &cobra.Command{Use: "help", SuggestionsMinimumDistance: 2}
	for _, t := range manual.Heads() {
		words.AddCommand(&cobra.Command{Use: t.Topic, Run: func(*cobra.Command, []string) {}})
	}
	near := append(words.SuggestionsFor(word), root.SuggestionsFor(word)...)
	slices.Sort(near)
	return slices.Compact(near)
}

type topicSummary struct {
	Topic   string `json:"topic"`
	Summary string `json:"summary"`
}

func (a *app) printTopics() error {
	list := []topicSummary{}
	for _, t := range manual.Heads() {
		list = append(list, topicSummary{t.Topic, t.Summary})
	}
	return a.print(list, strings.TrimSuffix(topicList(), "\n"))
}

func topicList() string {
	var b strings.Builder
	for _, t := range manual.Heads() {
		fmt.Fprintf(&b, "  %-16s %s\n", t.Topic, t.Summary)
	}
	return b.String()
}

func completeHelp(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	var words []string
	if len(args) == 0 {
		for _, t := range manual.Heads() {
			words = append(words, t.Topic+"\t"+t.Summary)
		}
	}
	parent, rest, err := cmd.Root().Find(args)
	if err == nil && len(rest) == 0 {
		for _, sub := range parent.Commands() {
			if sub.IsAvailableCommand() {
				words = append(words, sub.Name()+"\t"+sub.Short)
			}
		}
	}
	words = slices.DeleteFunc(words, func(w string) bool { return !strings.HasPrefix(w, typed) })
	return words, cobra.ShellCompDirectiveNoFileComp
}
