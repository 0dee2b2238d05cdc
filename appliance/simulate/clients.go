package simulate

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// note remembers the versions of the objects of a text.
func (b *box) note(text string) (refs []object.Ref) {
	for _, o := range b.decode(text) {
		ref := object.RefOf(o)
		if b.versions[ref] == nil {
			b.versions[ref] = map[string]object.Object{}
		}
		b.versions[ref][o.GetMeta().Annotations[version]] = o
		refs = append(refs, ref)
	}
	return refs
}

// decode is the function of that name, which is asked for the same texts again and again. The objects may not be changed.
func (w *written) decode(text string) []object.Object {
	all, is := w.decoded[text]
	if !is {
		all = decode(text)
		w.decoded[text] = all
	}
	return all
}

// decode returns the objects of a text that a script has; none of junk.
func decode(text string) (all []object.Object) {
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var meta object.TypeMeta
		if json.Unmarshal([]byte(doc), &meta) != nil {
			return nil
		}
		k, ok := kind.ByName(meta.APIVersion, meta.Kind)
		if !ok {
			return nil
		}
		o := k.New()
		if json.Unmarshal([]byte(doc), o) != nil {
			return nil
		}
		all = append(all, o)
	}
	return all
}

// put is a request that creates, replaces or applies an object.
func (b *box) put(verb, path, text, fate string) error {
	refs := b.note(text)
	if len(refs) != 1 {
		return fmt.Errorf("%q is not one object", text)
	}
	ref, now := refs[0], b.decode(text)[0].GetMeta().Annotations[version]
	if b.allowed[ref] == nil {
		b.allowed[ref] = map[string]bool{"": true}
	}
	var status int
	var answer string
	if verb == doApply {
		status, answer = b.request("PATCH", path+"?fieldManager=simulate&force=true", text, fate)
	} else {
		status, answer = b.request("PUT", path, text, fate)
	}
	if verb == doApply {
	} else if status == 404 || status == 409 && strings.Contains(answer, "not found") || status == 0 && fate != "" {
		status, answer = b.request("POST", path[:strings.LastIndexByte(path, '/')], text, fate)
	}
	switch {
	case fate == fateHalf && status >= 200 && status < 300:
		return fmt.Errorf("half a body is answered with %d: %s", status, answer)
	case status >= 200 && status < 300:
		b.allowed[ref] = map[string]bool{now: true}
		if s, is := b.decode(text)[0].(*object.Service); is && len(s.Spec.Selector) > 0 {
			b.endpointsMayGo(ref)
		}
	case status >= 400 && status < 500:
		b.stats.Refused++
	default:
		b.allowed[ref][now] = true
	}
	return nil
}

// junk is a request with a body that is no object. It is refused, and changes nothing: all that is stored was written by others.
func (b *box) junk(method, path, text string) error {
	if status, answer := b.request(method, path, text, ""); status != 0 && (status < 400 || status >= 500) {
		return fmt.Errorf("%s %s of junk is answered with %d: %s", method, path, status, answer)
	}
	return nil
}

// conflict is a request that creates an object which is there, or replaces a version which is not. It is refused.
func (b *box) conflict(verb, path, text string) error {
	o := decode(text)[0]
	if have, _ := b.life.store.Get(object.RefOf(o)); have == nil {
		return nil
	}
	method := "POST"
	if verb == doStale {
		method = "PUT"
		o.GetMeta().ResourceVersion = "1"
		text = encode(o, "0")
	} else {
		path = path[:strings.LastIndexByte(path, '/')]
	}
	if status, answer := b.request(method, path, text, ""); status != 0 && status != 409 && status != 422 && status < 500 {
		return fmt.Errorf("%s %s is answered with %d: %s", verb, path, status, answer)
	}
	return nil
}

// remove is a request that deletes an object.
func (b *box) remove(path, fate string) {
	ref, ok := b.refOf(path)
	if !ok {
		return
	}
	if ref.Kind == object.KindService {
		b.endpointsMayGo(ref)
	}
	switch status, _ := b.request("DELETE", path, "", fate); {
	case status >= 200 && status < 300, status == 404 && b.allowed[ref][""]:
		b.allowed[ref] = map[string]bool{"": true}
	case status == 404 || status >= 500 || status == 0:
		b.allowed[ref][""] = true
	}
}

// endpointsMayGo notes that a controller may remove or replace the Endpoints object of a Service, as it does when that goes or has a
// selector.
func (b *box) endpointsMayGo(service object.Ref) {
	service.Kind = object.KindEndpoints
	if allowed := b.allowed[service]; allowed != nil {
		allowed[""] = true
	}
}

// refOf is the object of a client at a path.
func (b *box) refOf(path string) (object.Ref, bool) {
	for ref := range b.allowed {
		if pathOf(ref) == path {
			return ref, true
		}
	}
	return object.Ref{}, false
}

// pathOf is the path of an object in the API.
func pathOf(ref object.Ref) string {
	return strings.NewReplacer("{namespace}", ref.Namespace, "{name}", ref.Name).Replace(objectPaths()[ref.Kind])
}

// objectPaths are the paths of objects, by kind.
var objectPaths = sync.OnceValue(func() map[string]string {
	paths := map[string]string{}
	for _, k := range kind.All() {
		paths[k.Name] = k.ObjectPath()
	}
	return paths
})
