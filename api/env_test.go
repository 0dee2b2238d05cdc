package api_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
)

func TestEnvironment(t *testing.T) {
	s := serve(t, newBackend(), api.Config{Environment: func(namespace string) []wire.Variable {
		if namespace == "empty" {
			return nil
		}
		return []wire.Variable{{Name: "WHERE", Value: namespace}}
	}})
	for query, want := range map[string]string{
		"":                   `{"namespace":"default","variables":[{"name":"WHERE","value":"default"}]}`,
		"?namespace=shop":    `{"namespace":"shop","variables":[{"name":"WHERE","value":"shop"}]}`,
		"?namespace=empty":   `{"namespace":"empty","variables":[]}`,
		"?namespace=Sh%2Fop": "400",
	} {
		code, body := s.get(t, "/svcctl/v1/env"+query)
		if want == "400" {
			var failure wire.Failure
			if err := json.Unmarshal([]byte(body), &failure); err != nil || code != http.StatusBadRequest || failure.Message == "" {
				t.Errorf("%s: %d %s", query, code, body)
			}
			continue
		}
		if code != http.StatusOK || body != want+"\n" {
			t.Errorf("%s: %d %s, want %s", query, code, body, want)
		}
	}
	if code, _ := start(t, newBackend()).get(t, "/svcctl/v1/env"); code != http.StatusNotFound {
		t.Errorf("without anybody who knows: %d", code)
	}
}
