package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// What the conformance suites expect to find on a server, by the descriptions
// of their scenarios.

// pixel is a PNG of one pixel, sound a WAV of none.
var (
	pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
	sound = base64.StdEncoding.EncodeToString([]byte("RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x40\x1f\x00\x00\x01\x00\x08\x00data\x00\x00\x00\x00"))
)

// schema2020 uses what JSON Schema 2020-12 has and our own schemas avoid.
const schema2020 = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
	"$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
	"properties": {
		"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"},
		"contactMethod": {"type": "string", "enum": ["phone", "email"]}, "phone": {"type": "string"}, "email": {"type": "string"}
	},
	"allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
	"if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
	"then": {"required": ["phone"]}, "else": {"required": ["email"]},
	"additionalProperties": false
}`

// fixtures add everything to a server.
func fixtures() []server.ServerOption {
	return []server.ServerOption{
		server.WithLogging(),
		func(s *server.MCPServer) {
			s.AddTools(contentTools()...)
			s.AddTools(askingTools()...)
			s.AddPrompts(fixturePrompts()...)
			s.AddResources(fixtureResources()...)
			s.AddResourceTemplate(
				mcp.NewResourceTemplate("test://template/{id}/data", "template", mcp.WithTemplateDescription("By id."), mcp.WithTemplateMIMEType("application/json")),
				func(_ context.Context, r mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
					id := strings.TrimSuffix(strings.TrimPrefix(r.Params.URI, "test://template/"), "/data")
					text := fmt.Sprintf(`{"id":%q,"templateTest":true,"data":"Data for ID: %s"}`, id, id)
					return []mcp.ResourceContents{mcp.TextResourceContents{URI: r.Params.URI, MIMEType: "application/json", Text: text}}, nil
				})
		},
	}
}

type toolHandler = server.ToolHandlerFunc

func tool(name string, handler toolHandler, o ...mcp.ToolOption) server.ServerTool {
	return server.ServerTool{Tool: mcp.NewTool(name, append([]mcp.ToolOption{mcp.WithDescription("For a conformance suite.")}, o...)...), Handler: handler}
}

// answers is a handler that always answers the same.
func answers(content ...mcp.Content) toolHandler {
	return func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: content}, nil
	}
}

func embedded(uri, kind, text string) mcp.EmbeddedResource {
	return mcp.NewEmbeddedResource(mcp.TextResourceContents{URI: uri, MIMEType: kind, Text: text})
}

func contentTools() []server.ServerTool {
	schema := server.ServerTool{
		Tool:    mcp.NewToolWithRawSchema("json_schema_2020_12_tool", "For a conformance suite.", json.RawMessage(schema2020)),
		Handler: answers(mcp.NewTextContent("ok")),
	}
	const inHeader = `{"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}, "required": ["region"]}`
	return []server.ServerTool{
		schema,
		{Tool: mcp.NewToolWithRawSchema("test_header", "For a conformance suite.", json.RawMessage(inHeader)), Handler: answers(mcp.NewTextContent("ok"))},
		tool("test_simple_text", answers(mcp.NewTextContent("This is a simple text response for testing."))),
		tool("test_image_content", answers(mcp.NewImageContent(pixel, "image/png"))),
		tool("test_audio_content", answers(mcp.NewAudioContent(sound, "audio/wav"))),
		tool("test_embedded_resource", answers(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))),
		tool("test_multiple_content_types", answers(
			mcp.NewTextContent("Multiple content types test:"), mcp.NewImageContent(pixel, "image/png"),
			embedded("test://mixed-content-resource", "application/json", `{"test":"data","value":123}`))),
		tool("test_error_handling", func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultError("This tool intentionally returns an error for testing"), nil
		}),
		tool("test_tool_with_logging", logs),
		tool("test_logging_tool", logs),
		tool("test_tool_with_progress", func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for _, done := range []int{0, 50, 100} {
				if r.Params.Meta != nil && r.Params.Meta.ProgressToken != nil {
					err := server.ServerFromContext(ctx).SendNotificationToClient(ctx, "notifications/progress",
						map[string]any{"progressToken": r.Params.Meta.ProgressToken, "progress": done, "total": 100})
					if err != nil {
						return nil, err
					}
				}
				time.Sleep(50 * time.Millisecond)
			}
			return mcp.NewToolResultText("done"), nil
		}),
	}
}

func logs(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	for _, text := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
		err := server.ServerFromContext(ctx).SendLogMessageToClient(ctx, mcp.NewLoggingMessageNotification(mcp.LoggingLevelInfo, "conformance", text))
		if err != nil {
			return nil, err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return mcp.NewToolResultText("logged"), nil
}

// asking is a handler that asks the client for all of these before it answers
// with what came.
func asking(state string, requests func(mcp.CallToolRequest, *server.InputRequestBuilder), ids []string, answer func(mcp.CallToolRequest) string) toolHandler {
	return func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		missing := slices.ContainsFunc(ids, func(id string) bool {
			_, ok := server.InputResponse(r.Params.InputResponses, id)
			return !ok
		})
		if !missing && state != "" && r.Params.RequestState != state {
			return nil, errors.New("the state was tampered with")
		}
		text := ""
		if !missing {
			text = answer(r)
		}
		if text == "" {
			b := server.NewInputRequestBuilder(state)
			requests(r, b)
			return b.ToolResult(), nil
		}
		return mcp.NewToolResultText(text), nil
	}
}

func form(message string, properties map[string]any) mcp.ElicitationParams {
	return mcp.ElicitationParams{Mode: mcp.ElicitationModeForm, Message: message, RequestedSchema: map[string]any{
		"type": "object", "properties": properties, "required": slices.Sorted(maps.Keys(properties)),
	}}
}

func ask(text string) mcp.CreateMessageParams {
	return mcp.CreateMessageParams{MaxTokens: 100, Messages: []mcp.SamplingMessage{{Role: mcp.RoleUser, Content: mcp.NewTextContent(text)}}}
}

// said is what a user has answered, as JSON; empty without a valid answer.
func said(r mcp.InputResponses, id string) string {
	answer := server.ElicitationResponse(r, id)
	if answer == nil || answer.Action == "" {
		return ""
	}
	content, _ := json.Marshal(answer.Content)
	return fmt.Sprintf("action=%s, content=%s", answer.Action, content)
}

var anyText = map[string]any{"type": "string"}

func askingTools() []server.ServerTool {
	one := func(id string, params func(mcp.CallToolRequest) mcp.ElicitationParams, before string) toolHandler {
		return asking("", func(r mcp.CallToolRequest, b *server.InputRequestBuilder) { b.Elicit(id, params(r)) }, []string{id}, func(r mcp.CallToolRequest) string {
			if answer := said(r.Params.InputResponses, id); answer != "" {
				return before + answer
			}
			return ""
		})
	}
	fixed := func(p mcp.ElicitationParams) func(mcp.CallToolRequest) mcp.ElicitationParams {
		return func(mcp.CallToolRequest) mcp.ElicitationParams { return p }
	}
	name := form("What is your name?", map[string]any{"name": anyText})
	confirm := form("Please confirm", map[string]any{"ok": map[string]any{"type": "boolean"}})
	stateOK := func(mcp.CallToolRequest) string { return "state-ok" }
	sampled := func(id string) func(mcp.CallToolRequest) string {
		return func(r mcp.CallToolRequest) string {
			answer := server.SamplingResponse(r.Params.InputResponses, id)
			if answer == nil {
				return ""
			}
			content, _ := json.Marshal(answer.Content)
			return "LLM response: " + string(content)
		}
	}
	rooted := func(r mcp.CallToolRequest) string {
		answer := server.RootsResponse(r.Params.InputResponses, "client_roots")
		if answer == nil {
			return ""
		}
		roots, _ := json.Marshal(answer.Roots)
		return "roots: " + string(roots)
	}
	return []server.ServerTool{
		tool("test_sampling", asking("", func(r mcp.CallToolRequest, b *server.InputRequestBuilder) {
			b.Sample("answer", ask(r.GetString("prompt", "")))
		}, []string{"answer"}, sampled("answer")), mcp.WithString("prompt", mcp.Required())),
		tool("test_elicitation", one("answer", func(r mcp.CallToolRequest) mcp.ElicitationParams {
			return form(r.GetString("message", ""), map[string]any{"username": anyText, "email": anyText})
		}, "User response: "), mcp.WithString("message", mcp.Required())),
		tool("test_elicitation_sep1034_defaults", one("answer", fixed(form("Defaults", map[string]any{
			"name":     map[string]any{"type": "string", "default": "John Doe"},
			"age":      map[string]any{"type": "integer", "default": 30},
			"score":    map[string]any{"type": "number", "default": 95.5},
			"status":   map[string]any{"type": "string", "enum": []string{"active", "inactive", "pending"}, "default": "active"},
			"verified": map[string]any{"type": "boolean", "default": true},
		})), "Elicitation completed: ")),
		tool("test_elicitation_sep1330_enums", one("answer", fixed(form("Choices", map[string]any{
			"untitledSingle": map[string]any{"type": "string", "enum": []string{"option1", "option2", "option3"}},
			"titledSingle":   map[string]any{"type": "string", "oneOf": titled("value1", "First Option", "value2", "Second Option")},
			"legacyEnum":     map[string]any{"type": "string", "enum": []string{"opt1", "opt2"}, "enumNames": []string{"Option One", "Option Two"}},
			"untitledMulti":  map[string]any{"type": "array", "items": map[string]any{"type": "string", "enum": []string{"option1", "option2", "option3"}}},
			"titledMulti":    map[string]any{"type": "array", "items": map[string]any{"anyOf": titled("value1", "First Choice", "value2", "Second Choice")}},
		})), "Elicitation completed: ")),
		tool("test_streaming_elicitation", one("user_name", fixed(name), "Hello, ")),
		tool("test_missing_capability", func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if info := server.RequestProtocolInfoFromContext(ctx); info.ClientCapabilities == nil || info.ClientCapabilities.Sampling == nil {
				return nil, mcp.MissingRequiredClientCapabilityError{Capability: "sampling"}
			}
			return mcp.NewToolResultText("the client can sample"), nil
		}),
		tool("test_input_required_result_elicitation", one("user_name", fixed(name), "Hello, ")),
		tool("test_input_required_result_sampling", asking("", func(_ mcp.CallToolRequest, b *server.InputRequestBuilder) {
			b.Sample("capital_question", ask("What is the capital of France?"))
		}, []string{"capital_question"}, sampled("capital_question"))),
		tool("test_input_required_result_list_roots", asking("", func(_ mcp.CallToolRequest, b *server.InputRequestBuilder) {
			b.Roots("client_roots")
		}, []string{"client_roots"}, rooted)),
		tool("test_input_required_result_request_state", asking("state of this call", func(_ mcp.CallToolRequest, b *server.InputRequestBuilder) {
			b.Elicit("confirm", confirm)
		}, []string{"confirm"}, stateOK)),
		tool("test_input_required_result_tampered_state", asking("signed state", func(_ mcp.CallToolRequest, b *server.InputRequestBuilder) {
			b.Elicit("confirm", confirm)
		}, []string{"confirm"}, stateOK)),
		tool("test_input_required_result_multiple_inputs", asking("state of three", func(_ mcp.CallToolRequest, b *server.InputRequestBuilder) {
			b.Elicit("user_name", name).Sample("greeting", ask("Generate a greeting")).Roots("client_roots")
		}, []string{"user_name", "greeting", "client_roots"}, rooted)),
		tool("test_input_required_result_multi_round", func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			switch {
			case r.Params.RequestState == "round 2" && said(r.Params.InputResponses, "step2") != "":
				return mcp.NewToolResultText("all steps done"), nil
			case r.Params.RequestState == "round 1" && said(r.Params.InputResponses, "step1") != "":
				return server.NewInputRequestBuilder("round 2").Elicit("step2", form("Step 2: What is your favorite color?", map[string]any{"color": anyText})).ToolResult(), nil
			}
			return server.NewInputRequestBuilder("round 1").Elicit("step1", form("Step 1: What is your name?", map[string]any{"name": anyText})).ToolResult(), nil
		}),
		tool("test_input_required_result_capabilities", func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			b := server.NewInputRequestBuilder("")
			if info := server.RequestProtocolInfoFromContext(ctx); info != nil && info.ClientCapabilities != nil {
				if info.ClientCapabilities.Elicitation != nil {
					b.Elicit("user_name", name)
				}
				if info.ClientCapabilities.Sampling != nil {
					b.Sample("greeting", ask("Generate a greeting"))
				}
			}
			return b.ToolResult(), nil
		}),
	}
}

// titled are the choices of an enumeration: pairs of value and title.
func titled(pairs ...string) (choices []map[string]string) {
	for i := 0; i < len(pairs); i += 2 {
		choices = append(choices, map[string]string{"const": pairs[i], "title": pairs[i+1]})
	}
	return choices
}

func fixturePrompts() []server.ServerPrompt {
	prompt := func(name string, messages func(mcp.GetPromptRequest) []mcp.Content, arguments ...string) server.ServerPrompt {
		o := []mcp.PromptOption{mcp.WithPromptDescription("For a conformance suite.")}
		for _, a := range arguments {
			o = append(o, mcp.WithArgument(a, mcp.RequiredArgument(), mcp.ArgumentDescription("Any text.")))
		}
		return server.ServerPrompt{Prompt: mcp.NewPrompt(name, o...), Handler: func(_ context.Context, r mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			var all []mcp.PromptMessage
			for _, c := range messages(r) {
				all = append(all, mcp.NewPromptMessage(mcp.RoleUser, c))
			}
			return mcp.NewGetPromptResult("", all), nil
		}}
	}
	asks := server.ServerPrompt{
		Prompt: mcp.NewPrompt("test_input_required_result_prompt", mcp.WithPromptDescription("For a conformance suite.")),
		Handler: func(_ context.Context, r mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			if answer := said(r.Params.InputResponses, "user_context"); answer != "" {
				return mcp.NewGetPromptResult("", []mcp.PromptMessage{mcp.NewPromptMessage(mcp.RoleUser, mcp.NewTextContent(answer))}), nil
			}
			return server.NewInputRequestBuilder("").Elicit("user_context", form("What context should the prompt use?", map[string]any{"context": anyText})).PromptResult(), nil
		},
	}
	return []server.ServerPrompt{
		asks,
		prompt("test_simple_prompt", func(mcp.GetPromptRequest) []mcp.Content {
			return []mcp.Content{mcp.NewTextContent("This is a simple prompt for testing.")}
		}),
		prompt("test_prompt_with_arguments", func(r mcp.GetPromptRequest) []mcp.Content {
			a := r.Params.Arguments
			return []mcp.Content{mcp.NewTextContent(fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", a["arg1"], a["arg2"]))}
		}, "arg1", "arg2"),
		prompt("test_prompt_with_embedded_resource", func(r mcp.GetPromptRequest) []mcp.Content {
			return []mcp.Content{
				embedded(r.Params.Arguments["resourceUri"], "text/plain", "Embedded resource content for testing."),
				mcp.NewTextContent("Please process the embedded resource above."),
			}
		}, "resourceUri"),
		prompt("test_prompt_with_image", func(mcp.GetPromptRequest) []mcp.Content {
			return []mcp.Content{mcp.NewImageContent(pixel, "image/png"), mcp.NewTextContent("Please analyze the image above.")}
		}),
	}
}

func fixtureResources() []server.ServerResource {
	resource := func(uri, kind string, contents mcp.ResourceContents) server.ServerResource {
		return server.ServerResource{
			Resource: mcp.NewResource(uri, strings.TrimPrefix(uri, "test://"), mcp.WithResourceDescription("For a conformance suite."), mcp.WithMIMEType(kind)),
			Handler: func(context.Context, mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
				return []mcp.ResourceContents{contents}, nil
			},
		}
	}
	return []server.ServerResource{
		resource("test://static-text", "text/plain", mcp.TextResourceContents{URI: "test://static-text", MIMEType: "text/plain", Text: "This is the content of the static text resource."}),
		resource("test://static-binary", "image/png", mcp.BlobResourceContents{URI: "test://static-binary", MIMEType: "image/png", Blob: pixel}),
		resource("test://watched-resource", "text/plain", mcp.TextResourceContents{URI: "test://watched-resource", MIMEType: "text/plain", Text: "unchanged"}),
	}
}
