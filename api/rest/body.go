package rest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/kube/protobuf"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// bodyTypes are the media types of bodies that hold an object. A body without Content-Type has the first.
var bodyTypes = []string{typeJSON, typeYAML, protobuf.MediaType}

// decodeReview reads the object in the body of a review.
func (s *Server) decodeReview(w http.ResponseWriter, r *request) (object.Object, error) {
	o, err := optionsOf(r, "CreateOptions")
	if err != nil {
		return nil, err
	}
	mediaType, err := mediaTypeOf(r.http, bodyTypes)
	if err != nil {
		return nil, err
	}
	body, err := s.bodies.readSmall(w, r)
	if err != nil {
		return nil, err
	}
	content, err := o.decode(body, mediaType, r)
	if err != nil {
		return nil, err
	}
	o.warnings.send(w)
	return typed(content, r.kind)
}

// decodeBody decodes the object in the body of a request, in JSON, YAML or protobuf. It must have the kind and namespace of the path. Depending on
// the query parameter fieldValidation, unknown and duplicate fields are refused, returned as Warning headers, or ignored.
func (s *Server) decodeBody(r *request, o *options) (map[string]any, error) {
	mediaType, err := mediaTypeOf(r.http, bodyTypes)
	if err != nil {
		return nil, err
	}
	body, err := s.bodies.read(r, schema.MaxBytes)
	if err != nil {
		return nil, err
	}
	return o.decode(body, mediaType, r)
}

func (o *options) decode(body []byte, mediaType string, r *request) (map[string]any, error) {
	content, fieldWarnings, err := decode(body, mediaType, r.kind)
	if err != nil {
		return nil, err
	}
	if len(fieldWarnings) > 0 && o.validation == strict {
		return nil, cannotBe(r.kind.Name, r.kind.Version, r.kind, schema.StrictError(fieldWarnings))
	}
	o.warnOfFields(fieldWarnings)
	return content, inNamespace(content, r)
}

// mediaTypeOf returns the media type of a request's body, which must be one of accepted. Without Content-Type it is the first of them.
func mediaTypeOf(r *http.Request, accepted []string) (string, error) {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return "", refusal(wire.ReasonUnsupportedMediaType, nil, "the body of the request has the content encoding %q: send it without", encoding)
	}
	header := r.Header.Get("Content-Type")
	if header == "" {
		return accepted[0], nil
	}
	mediaType, _, err := mime.ParseMediaType(header)
	if errors.Is(err, mime.ErrInvalidMediaParameter) {
		err = nil // the type is read nevertheless
	}
	if err != nil || !slices.Contains(accepted, mediaType) {
		return "", unsupportedMedia(accepted...)
	}
	return mediaType, nil
}

// decode reads an object of a kind, and returns warnings about unknown and duplicate fields.
func decode(body []byte, mediaType string, k kind.Kind) (content map[string]any, fieldWarnings []string, err error) {
	if mediaType == protobuf.MediaType && k.Custom {
		return nil, nil, unsupportedMedia(typeJSON, typeYAML)
	}
	if mediaType == protobuf.MediaType {
		content, err = decodeProtobuf(body, k)
		return content, nil, err
	}
	value, fieldWarnings, err := parse(body, mediaType)
	content, isObject := value.(map[string]any)
	if err == nil && !isObject {
		err = errors.New("it is no object with fields")
	}
	if err != nil {
		return nil, nil, unrecognized(body, k, err)
	}
	if err := checkKind(content, k); err != nil {
		return nil, nil, err
	}
	unknown, err := schema.Of(k).Prune(content)
	if err != nil {
		return nil, nil, cannotBe(k.Name, k.Version, k, err)
	}
	content["apiVersion"], content["kind"] = k.APIVersion(), k.Name
	return content, append(fieldWarnings, unknown...), nil
}

// parse reads one value of JSON or YAML. The fieldWarnings are about duplicate fields.
func parse(body []byte, mediaType string) (value any, fieldWarnings []string, err error) {
	value, fieldWarnings, err = schema.Parse(body)
	if err == nil || mediaType == typeJSON || len(body) > schema.MaxBytes {
		return value, fieldWarnings, err
	}
	documents, problem := manifest.Values(body, manifest.Limits{Depth: schema.MaxDepth})
	switch {
	case problem != nil:
		return nil, nil, fmt.Errorf("line %d: %s", problem.Line, problem.Message)
	case len(documents) != 1:
		return nil, nil, fmt.Errorf("%d documents: send one", len(documents))
	}
	return documents[0].Data, duplicateFields(documents[0]), nil
}

// duplicateFields returns the warnings about duplicate fields in a YAML value.
func duplicateFields(v manifest.Value) []string {
	return object.Texts(v.Duplicates, func(field string) string { return fmt.Sprintf("duplicate field %q", field) })
}

func decodeProtobuf(body []byte, k kind.Kind) (map[string]any, error) {
	envelope, err := protobuf.Open(body)
	if err != nil {
		return nil, unrecognized(body, k, err)
	}
	content := map[string]any{"apiVersion": envelope.APIVersion, "kind": envelope.Kind}
	if err := checkKind(content, k); err != nil {
		return nil, err
	}
	content, err = envelope.Object(schema.Of(k))
	if err != nil {
		return nil, cannotBe(k.Name, k.Version, k, err)
	}
	content["apiVersion"], content["kind"] = k.APIVersion(), k.Name
	return content, nil
}

// checkKind refuses an object whose kind or apiVersion differs from that of the path. Both may be absent.
func checkKind(content map[string]any, k kind.Kind) error {
	named, version := content["kind"], content["apiVersion"]
	for _, value := range []any{named, version} {
		if _, isText := value.(string); !isText && value != nil {
			return cannotBe(k.Name, k.Version, k, errors.New("kind and apiVersion have to be text"))
		}
	}
	if version != nil && version != "" && version != k.APIVersion() {
		return badRequest("the API version in the data (%s) does not match the expected API version (%s)", version, k.APIVersion())
	}
	if named != nil && named != "" && named != k.Name {
		return cannotBe(named.(string), k.Version, k, fmt.Errorf("send a %s, or send it to the path of its kind", k.Name))
	}
	return nil
}

// cannotBe returns the error for content that does not decode as an object of a kind.
func cannotBe(named, version string, k kind.Kind, why error) *statusError {
	return badRequest("%s in version %q cannot be handled as a %s: %v", named, version, k.Name, why).at(k, "", why)
}

// unrecognized returns the error for a body that is no object of any kind. It quotes the beginning of the body, in hexadecimal digits if
// that does not look like JSON.
func unrecognized(body []byte, k kind.Kind, why error) *statusError {
	const shown = 30
	summary, more := body, ""
	if len(body) > shown {
		summary, more = body[:shown], " ..."
	}
	text := "<empty>"
	switch {
	case len(body) == 0:
	case body[0] == '{':
		text = strings.ToValidUTF8(string(summary), "?") + more
	default:
		text = hex.EncodeToString(summary) + more
	}
	return badRequest("the object provided is unrecognized (must be of type %s): %v (%s)", k.Name, why, text)
}

// inNamespace sets the namespace of an object to that of the path. It refuses an object that names another one.
func inNamespace(content map[string]any, r *request) error {
	metadata := metadataIn(content)
	switch namespace, _ := metadata["namespace"].(string); {
	case !r.kind.Namespaced:
		delete(metadata, "namespace")
	case namespace != "" && namespace != r.namespace:
		return badRequest("the namespace of the provided object does not match the namespace sent on the request")
	default:
		metadata["namespace"] = r.namespace
	}
	return nil
}

// metadataIn returns the metadata of an object, and adds an empty one if it is missing.
func metadataIn(content map[string]any) map[string]any {
	metadata, ok := content["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		content["metadata"] = metadata
	}
	return metadata
}

// textIn returns a string field of an object's metadata, "" if there is none.
func textIn(content map[string]any, field string) string {
	metadata, _ := content["metadata"].(map[string]any)
	text, _ := metadata[field].(string)
	return text
}

// typed decodes a pruned object into its Go type.
func typed(content map[string]any, k kind.Kind) (object.Object, error) {
	o := k.New()
	if err := schema.Of(k).ToObject(content, o); err != nil {
		// The schema and the type disagree about a value, as about a year of five digits.
		return nil, cannotBe(k.Name, k.Version, k, err)
	}
	o.GetTypeMeta().APIVersion, o.GetTypeMeta().Kind = k.APIVersion(), k.Name
	return o, nil
}

// untyped returns an object as the map that packages managedfields and patch work on.
func untyped(o object.Object, k kind.Kind) map[string]any { return schema.Of(k).FromObject(o) }

// copied returns a copy of an object; the copy's metadata may be changed.
func copied(content map[string]any) map[string]any {
	content = maps.Clone(content)
	content["metadata"] = maps.Clone(metadataIn(content))
	return content
}

// entriesOf decodes the managedFields of an object.
func entriesOf(content map[string]any) ([]object.ManagedFieldsEntry, error) {
	list, _ := metadataIn(content)["managedFields"].([]any)
	entries, err := schema.ToEntries(list)
	if err != nil {
		return nil, fmt.Errorf("decode managedFields: %w", err)
	}
	return entries, nil
}

// Limits on the memory that request bodies take. Clients decide how long a body is and how slowly they send it, so that a few hundred connections
// could otherwise hold a gigabyte.
const (
	// smallBody is the size in bytes that every request may send, even if large bodies have used up maxBodies, so that small requests are never
	// refused. It is also the maximum size of a review or of DeleteOptions.
	smallBody = 64 << 10
	// maxBodies bounds the sum of the bytes by which request bodies exceed smallBody. Clients other than admins may use half of it.
	maxBodies = 64 << 20
	// smallBodyTime bounds the time of reading a body of at most smallBody.
	smallBodyTime = 10 * time.Second
	// firstPiece is the initial buffer size of a body. The buffer doubles as bytes arrive; Content-Length does not reserve memory.
	firstPiece = 4 << 10
)

// bodies counts the bytes by which the request bodies in memory exceed smallBody, over all requests.
type bodies struct{ held atomic.Int64 }

// reserve adds n bytes to the count. It returns false, and adds none, if the count would exceed most.
func (b *bodies) reserve(n, most int64) bool {
	if b.held.Add(n) > most {
		b.held.Add(-n)
		return false
	}
	return true
}

// read reads the body of a request, at most most bytes. The bytes stay counted until the request is answered, since the decoded values stay in memory
// until then.
func (b *bodies) read(r *request, most int64) ([]byte, error) {
	limit := fmt.Sprintf("limit is %d", most)
	if r.http.ContentLength > most {
		return nil, tooLarge(limit)
	}
	budget := int64(maxBodies)
	if r.user.Role != auth.Admin {
		budget /= 2
	}
	body := make([]byte, 0, min(firstPiece, most+1))
	for {
		if len(body) == cap(body) {
			if int64(len(body)) > most {
				return nil, tooLarge(limit)
			}
			room := min(2*int64(cap(body)), most+1)
			if more := room - max(smallBody, int64(cap(body))); more > 0 {
				if !b.reserve(more, budget) {
					return nil, tooManyRequests("the bodies of other requests fill the memory that there is for them: try again later", busyRetry)
				}
				r.held += more
			}
			body = append(make([]byte, 0, room), body...)
		}
		n, err := r.http.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		var tooLong *http.MaxBytesError
		switch {
		case errors.Is(err, io.EOF) && int64(len(body)) > most:
			return nil, tooLarge(limit)
		case errors.Is(err, io.EOF):
			return body, nil
		case errors.As(err, &tooLong):
			return nil, err
		case err != nil:
			return nil, badRequest("the body of the request could not be read to its end: %v", err)
		}
	}
}

// readSmall is like read, but for a body of at most smallBody bytes, within smallBodyTime.
func (b *bodies) readSmall(w http.ResponseWriter, r *request) ([]byte, error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(smallBodyTime))
	return b.read(r, smallBody)
}
