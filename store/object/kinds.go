package object

// The API versions, as they are written in documents.
const (
	APIVersionCore      = "v1"
	APIVersionDiscovery = "discovery.k8s.io/v1"
)

// New is an empty object of a kind, with its TypeMeta set; false when the kind is
// not one this product reads. A List is no object: who decodes takes it apart.
func New(apiVersion, kind string) (Object, bool) {
	meta := TypeMeta{APIVersion: apiVersion, Kind: kind}
	switch meta {
	case TypeMeta{APIVersion: APIVersionCore, Kind: KindService}:
		return &Service{TypeMeta: meta}, true
	case TypeMeta{APIVersion: APIVersionCore, Kind: KindEndpoints}:
		return &Endpoints{TypeMeta: meta}, true
	case TypeMeta{APIVersion: APIVersionCore, Kind: KindPod}:
		return &Pod{TypeMeta: meta}, true
	case TypeMeta{APIVersion: APIVersionDiscovery, Kind: KindEndpointSlice}:
		return &EndpointSlice{TypeMeta: meta}, true
	}
	if o, is := newOfMetalLB(meta); is {
		return o, true
	}
	return newOfAPI(meta)
}
