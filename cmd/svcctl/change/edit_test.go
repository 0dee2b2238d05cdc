package change

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/cmd/svcctl/output"
)

func TestMergePatch(t *testing.T) {
	from := map[string]any{"a": "1", "b": map[string]any{"c": "2", "d": "3"}, "l": []any{"x"}, "gone": "y"}
	to := map[string]any{"a": "1", "b": map[string]any{"c": "5", "d": "3", "n": map[string]any{}}, "l": []any{"x", "y"}}
	got, err := output.JSON(mergePatch(from, to))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"b":{"c":"5","n":{}},"gone":null,"l":["x","y"]}`
	if strings.Join(strings.Fields(got), "") != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(mergePatch(from, from)) != 0 {
		t.Error("nothing is something")
	}
}
