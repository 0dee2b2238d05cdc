package patch

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	jsonpatch "github.com/evanphx/json-patch/v5"

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
		inner, isObject := value.(map[string]any)
		switch {
		case value == nil:
			delete(o, key)
		case isObject:
			// What is no object counts as an empty one, so that nulls in the patch go.
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
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, nil, malformed("error decoding patch: %v", err)
	}
	before, err := json.Marshal(live)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the object that is patched: %w", err)
	}
	options := jsonpatch.NewApplyOptions()
	options.AccumulatedCopySizeLimit = maxCopied
	after, err := applyTo(before, operations, options)
	if err != nil {
		return nil, nil, &refusal{ErrNotApplicable, err.Error()}
	}
	patched, _, err = schema.ParseObject(after)
	if err != nil {
		return nil, nil, &refusal{ErrNotApplicable, err.Error()}
	}
	return patched, duplicates, nil
}

// applyTo applies operations. The library panics on some incomplete ones, such as a test
// of the whole object without a value.
func applyTo(before []byte, operations jsonpatch.Patch, options *jsonpatch.ApplyOptions) (after []byte, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("an operation is not complete: %v", cause)
		}
	}()
	return operations.ApplyWithOptions(before, options)
}
