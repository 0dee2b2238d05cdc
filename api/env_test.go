package api_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
)

func TestEnvironment(t *testing.T) {
	cfg := api.Config{Environment: func(namespace string) []wire.Variable {
		if namespace == "empty" {
			return nil
		}
		return []wire.Variable{{Name: "WHERE", Value: namespace}}
	}}
	handler := api.New(cfg, newBackend(), slog.New(slog.DiscardHandler)).Handler()
	for query, want := range map[string]string{
		"":                   `{"namespace":"default","variables":[{"name":"WHERE","value":"default"}]}`,
		"?namespace=shop":    `{"namespace":"shop","variables":[{"name":"WHERE","value":"shop"}]}`,
		"?namespace=empty":   `{"namespace":"empty","variables":[]}`,
		"?namespace=Sh%2Fop": "400",
	} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/svcctl/v1/env"+query, nil))
		if want == "400" {
			var failure wire.Failure
			if err := json.Unmarshal(answer.Body.Bytes(), &failure); err != nil || answer.Code != http.StatusBadRequest || failure.Message == "" {
				t.Errorf("%s: %d %s", query, answer.Code, answer.Body)
			}
			continue
		}
		if answer.Code != http.StatusOK || answer.Body.String() != want+"\n" {
			t.Errorf("%s: %d %s, want %s", query, answer.Code, answer.Body, want)
		}
	}
	handler = api.New(api.Config{}, newBackend(), slog.New(slog.DiscardHandler)).Handler()
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/svcctl/v1/env", nil))
	if answer.Code != http.StatusNotFound {
		t.Errorf("without anybody who knows: %d", answer.Code)
	}
}
