package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/store/manifest"
)

// judged evaluates the keywords of JSON Schema (draft 7) that the schema uses, and gives what is wrong.
type judged struct {
	t    *testing.T
	root map[string]any
}

func (j *judged) errors(schema map[string]any, value any, path string) (errs []string) {
	wrong := func(format string, args ...any) { errs = append(errs, path+": "+fmt.Sprintf(format, args...)) }
	object, isObject := value.(map[string]any)
	for keyword, of := range schema {
		switch keyword {
		case "$schema", "title", "description", "definitions", "then", "default", "format":
		case "$ref":
			name := strings.TrimPrefix(of.(string), "#/definitions/")
			errs = append(errs, j.errors(j.root["definitions"].(map[string]any)[name].(map[string]any), value, path)...)
		case "type":
			names, several := of.([]any)
			if !several {
				names = []any{of}
			}
			if !slices.ContainsFunc(names, func(name any) bool { return j.is(value, name) }) {
				wrong("is no %v", of)
			}
		case "const":
			if value != of {
				wrong("is not %v", of)
			}
		case "enum":
			if !slices.Contains(of.([]any), value) {
				wrong("is none of %v", of)
			}
		case "required":
			for _, key := range of.([]any) {
				if _, has := object[key.(string)]; isObject && !has {
					wrong("has no %s", key)
				}
			}
		case "properties":
			for key, inner := range of.(map[string]any) {
				if field, has := object[key]; has {
					errs = append(errs, j.errors(inner.(map[string]any), field, path+"."+key)...)
				}
			}
		case "additionalProperties":
			known, _ := schema["properties"].(map[string]any)
			for key, field := range object {
				if _, is := known[key]; is {
					continue
				}
				if inner, is := of.(map[string]any); is {
					errs = append(errs, j.errors(inner, field, path+"."+key)...)
				} else {
					wrong("has an unknown %s", key)
				}
			}
		case "items":
			list, _ := value.([]any)
			for i, item := range list {
				errs = append(errs, j.errors(of.(map[string]any), item, fmt.Sprintf("%s[%d]", path, i))...)
			}
		case "allOf":
			for _, one := range of.([]any) {
				errs = append(errs, j.errors(one.(map[string]any), value, path)...)
			}
		case "anyOf":
			if !slices.ContainsFunc(of.([]any), func(one any) bool { return len(j.errors(one.(map[string]any), value, path)) == 0 }) {
				wrong("fits none of %v", of)
			}
		case "oneOf":
			fits := 0
			for _, one := range of.([]any) {
				if len(j.errors(one.(map[string]any), value, path)) == 0 {
					fits++
				}
			}
			if fits != 1 {
				wrong("fits %d of %v", fits, of)
			}
		case "if":
			if len(j.errors(of.(map[string]any), value, path)) == 0 {
				errs = append(errs, j.errors(schema["then"].(map[string]any), value, path)...)
			}
		default:
			if strings.HasPrefix(keyword, "x-kubernetes-") {
				continue // validators ignore keywords of others
			}
			j.t.Fatalf("the schema has the keyword %s, which this test does not know", keyword)
		}
	}
	return errs
}

// is reports whether a value is of a type of JSON.
func (j *judged) is(value, name any) bool {
	switch v := value.(type) {
	case map[string]any:
		return name == "object"
	case []any:
		return name == "array"
	case string:
		return name == "string"
	case bool:
		return name == "boolean"
	case json.Number:
		return name == "integer" && !strings.ContainsAny(v.String(), ".eE")
	}
	return false
}

// TestSchema: the schema takes every manifest of the examples, refuses what is wrong with its place, and offers
// annotations.
func TestSchema(t *testing.T) {
	b := newBench()
	if code := b.run("validate", "--schema"); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	j := &judged{t: t}
	if err := json.Unmarshal(b.out.Bytes(), &j.root); err != nil {
		t.Fatal(err)
	}
	taken := 0
	err := filepath.WalkDir("../../examples", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		values, problem := manifest.Values(text, manifest.DefaultLimits())
		if problem != nil {
			return problem
		}
		for _, v := range values {
			if o, is := v.Data.(map[string]any); is && o["kind"] != nil {
				taken++
				for _, wrong := range j.errors(j.root, v.Data, path) {
					t.Error(wrong)
				}
			}
		}
		return nil
	})
	if err != nil || taken < 50 {
		t.Errorf("%d documents were judged, %v", taken, err)
	}
	for text, want := range map[string]string{
		"{kind: Service}": "has no apiVersion",
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {prots: []}}":                                         `\.spec: has an unknown prots`,
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: http}]}}":                             `\.spec\.ports\[0\]\.port: is no integer`,
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: Loadbalancer}}":                                `\.spec\.type: is none of`,
		"{apiVersion: v2, kind: Service, metadata: {name: a}}":                                                            `\.apiVersion: is none of \[v1\]`,
		"{apiVersion: v1, kind: Service, metadata: {}}":                                                                   `\.metadata: has no name`,
		"{apiVersion: v1, kind: Service, metadata: {name: a, annotations: {svcctl.io/weights: 3}}}":                       `svcctl.io/weights: is no string`,
		"{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: Node}}]}": `\.items\[0\]\.spec\.type: is none of`,
		"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a}, endpoints: [{adresses: []}]}":        `\.endpoints\[0\]: has an unknown adresses`,
		"{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {replicas: 3}}":                               "^$",
	} {
		values, problem := manifest.Values([]byte(text), manifest.DefaultLimits())
		if problem != nil {
			t.Fatal(problem)
		}
		if got := strings.Join(j.errors(j.root, values[0].Data, ""), "; "); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s: %q, want %s", text, got, want)
		}
	}
	if !bytes.Contains(b.out.Bytes(), []byte(`"svcctl.io/balance"`)) {
		t.Error("no annotations are offered")
	}
}
