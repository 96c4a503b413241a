package job

import (
	"encoding/json"
	"reflect"
	"testing"
)

// What is read of valid JSON is what encoding/json reads, however it is written.
func TestReadTree_IsAsEncodingJSONReadsIt(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `""`, `null`, ` [ true , false,null ,"a" ] `, "{\n\t\"a\" : { \"b\\u00e9\\\\\\\"\" : [ [ ] , { } , \"]}\" ] } ,\r\n\"\":\"\\n\"}", `[[["x"]],"\"",{"a":"}"}]`,
	} {
		var want any
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		if got, twice, changed := readTree("", []byte(text)); !reflect.DeepEqual(got, want) || twice != nil || changed {
			t.Errorf("%s: %#v, want %#v, %v, %v", text, got, want, twice, changed)
		}
		left := JSON(text)
		if raw := left.Raw(); left.Next() != 0 || !json.Valid(raw) {
			t.Errorf("%s: %s, and %s is left", text, raw, left)
		}
	}
	if got, _, changed := readTree("", []byte(`[1,-2.5,1e2]`)); !changed || !reflect.DeepEqual(got, []any{json.Number("1"), json.Number("-2.5"), json.Number("100")}) {
		t.Errorf("%#v", got)
	}
	if _, twice, _ := readTree("at", []byte(`{"a":[0,{"b":1,"b":2}]}`)); len(twice) != 1 || twice[0].Field != "at.a[1].b" {
		t.Errorf("%v", twice)
	}
}
