// Runs a job by the API and prints its output: LINUS_URL and LINUS_TOKEN say where. The client
// is made of the API's description:
//
//	curl -H "Authorization: Bearer $LINUS_TOKEN" $LINUS_URL/api/v1/openapi.json >openapi.json
//	go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2 -generate types,client -package linusapi -o linusapi/api.go openapi.json
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"

	"example/linusapi"
)

func main() {
	ctx := context.Background()
	linus, err := linusapi.NewClientWithResponses(os.Getenv("LINUS_URL"), linusapi.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+os.Getenv("LINUS_TOKEN"))
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}

	wait, key := 50, rand.Text()
	submitted, err := linus.SubmitJobWithResponse(ctx, &linusapi.SubmitJobParams{WaitSeconds: &wait, IdempotencyKey: &key},
		linusapi.SubmitJobJSONRequestBody{Manifest: linusapi.Manifest{AgentType: "script", Task: "echo hello from Go"}})
	if err != nil {
		log.Fatal(err)
	}
	if submitted.JSON201 == nil {
		log.Fatalf("submit: %s", submitted.Body)
	}
	job := *submitted.JSON201
	for after := int64(0); job.CompletedAt == nil; {
		news, err := linus.WatchJobWithResponse(ctx, job.Id, &linusapi.WatchJobParams{After: &after})
		if err != nil {
			log.Fatal(err)
		}
		if news.JSON200 == nil {
			log.Fatalf("watch: %s", news.Body)
		}
		for _, event := range news.JSON200.Items {
			fmt.Fprintln(os.Stderr, event.Kind)
			after = event.Seq
		}
		job = news.JSON200.Job
	}
	stream := "stdout"
	output, err := linus.GetOutputWithResponse(ctx, job.Id, &linusapi.GetOutputParams{Stream: &stream})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.Status, *job.Outcome.ExitCode, strings.TrimSpace(string(output.Body)))

	missing, err := linus.GetVMWithResponse(ctx, "nobody")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(missing.StatusCode(), missing.ApplicationproblemJSON4XX.Code)
}
