package patch

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	// The version that the API server of Kubernetes has: in later ones "replace" wants a key that is there.
	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"svcctl.io/svcctl/store/schema"
)

// The kinds of errors, for errors.Is.
var (
	// ErrMalformed: the body is not a valid patch (HTTP 400).
	ErrMalformed = errors.New("malformed patch")
	// ErrNotApplicable: the patch is valid but cannot be applied to this object (HTTP
	// 422).
	ErrNotApplicable = errors.New("the patch does not fit the object")
	// ErrTooLarge: the patch exceeds a limit (HTTP 413).
	ErrTooLarge = errors.New("the patch is too large")
)

const (
	// maxOperations of a JSON patch (maxJSONPatchOperations of the API server of
	// Kubernetes).
	maxOperations = 10000
	// maxCopied bounds the bytes that the copy operations of one JSON patch add.
	maxCopied = schema.MaxBytes
)

// The library has the limit in a variable of its own. Nothing else here uses it.
func init() { jsonpatch.AccumulatedCopySizeLimit = maxCopied }

// refusal is an error of one of the kinds above, with the text of Kubernetes.
type refusal struct {
	kind error
	text string
}

func (e *refusal) Error() string { return e.text }
func (e *refusal) Unwrap() error { return e.kind }

func malformed(format string, args ...any) error {
	return &refusal{ErrMalformed, fmt.Sprintf(format, args...)}
}

// Merge applies a merge patch (RFC 7386): it merges objects, deletes fields for null, and
// replaces other values.
func Merge(live, patch map[string]any) map[string]any {
	merged := maps.Clone(live)
	if merged == nil {
		merged = map[string]any{}
	}
	for key, value := range merged {
		merged[key] = schema.Clone(value)
	}
	mergeInto(merged, patch)
	return merged
}

// mergeInto merges a patch into an object in place.
func mergeInto(o, patch map[string]any) {
	for key, value := range patch {
		switch inner, isObject := value.(map[string]any); {
		case value == nil:
			delete(o, key)
		case isObject:
			// A value that is no object counts as an empty one, so that nulls in the patch go.
			under, ok := o[key].(map[string]any)
			if !ok {
				under = map[string]any{}
				o[key] = under
			}
			mergeInto(under, inner)
		default:
			o[key] = schema.Clone(value)
		}
	}
}

// JSON applies a JSON patch (RFC 6902). duplicates are texts as in schema.Parse.
func JSON(live map[string]any, patch []byte) (patched map[string]any, duplicates []string, err error) {
	parsed, duplicates, err := schema.Parse(patch)
	if err != nil {
		return nil, nil, malformed("%v", err)
	}
	list, ok := parsed.([]any)
	if !ok {
		return nil, nil, malformed("a JSON patch is a list of operations")
	}
	if len(list) > maxOperations {
		return nil, nil, &refusal{ErrTooLarge, fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(list))}
	}
	for _, operation := range list {
		if err := checkOperation(operation); err != nil {
			return nil, nil, err
		}
	}
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, nil, malformed("error decoding patch: %v", err)
	}
	before, err := json.Marshal(live)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the object that is patched: %w", err)
	}
	after, err := applyTo(before, operations)
	if err != nil {
		return nil, nil, &refusal{ErrNotApplicable, err.Error()}
	}
	patched, _, err = schema.ParseObject(after)
	if err != nil {
		return nil, nil, &refusal{ErrNotApplicable, err.Error()}
	}
	return patched, duplicates, nil
}

// checkOperation refuses an operation that the library would take for another one: without a value it
// would write null, which removes the field.
func checkOperation(operation any) error {
	fields, isObject := operation.(map[string]any)
	named, _ := fields["op"].(string)
	_, hasValue := fields["value"]
	_, hasPath := fields["path"].(string)
	why := ""
	switch {
	case !isObject:
		why = "it is no object with fields"
	case !slices.Contains([]string{"add", "remove", "replace", "move", "copy", "test"}, named):
		why = "unsupported operation"
	case !hasPath:
		why = "missing path field"
	case !hasValue && (named == "add" || named == "replace"):
		why = "missing value field"
	default:
		return nil
	}
	const shown = 256
	text, err := json.Marshal(operation)
	if err != nil {
		return malformed("error decoding patch: %v", err)
	}
	return malformed("error decoding patch: invalid operation %s: %s", text[:min(len(text), shown)], why)
}

// applyTo applies operations. The library panics on some incomplete ones, such as a test
// of the whole object without a value.
func applyTo(before []byte, operations jsonpatch.Patch) (after []byte, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("an operation is not complete: %v", cause)
		}
	}()
	return operations.Apply(before)
}
