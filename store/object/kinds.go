package object

// The API versions, as they are written in documents.
const (
	APIVersionCore      = "v1"
	APIVersionDiscovery = "discovery.k8s.io/v1"
)

// New returns an empty object of a kind, with its TypeMeta set; false when the kind is
// not one this product reads. A List is no object: who decodes takes it apart.
func New(apiVersion, kind string) (Object, bool) {
	s := StrategyFor(apiVersion, kind)
	if s == nil {
		return nil, false
	}
	return s.New(), true
}
