package manifest

// Limits bound what one file may cost. A field that is zero has its default.
type Limits struct {
	// Bytes is the most bytes of a file.
	Bytes int
	// Documents is the most documents of a file, items of Lists included.
	Documents int
	// Depth is the most mappings and lists inside each other.
	Depth int
	// Keys is the most keys of one mapping.
	Keys int
	// Nodes is the most scalars, mappings and lists of one document; an item of a List
	// in JSON counts as a document.
	Nodes int
	// Aliases is the most nodes that the aliases and merge keys of one document add.
	Aliases int
}

// The defaults of Limits. 50,000 objects of 600 bytes are 30 MB; the deepest path of a
// served kind has 7 levels; the largest object that Kubernetes allows, an EndpointSlice
// of 1,000 endpoints with every field set, has some 30,000 nodes. A parsed YAML node
// costs some 250 bytes and 0.4 µs, so the largest document that is parsed only to be
// refused costs about 50 MB and 100 ms.
const (
	defaultBytes     = 64 << 20
	defaultDocuments = 100_000
	defaultDepth     = 64
	defaultKeys      = 10_000
	defaultNodes     = 200_000
	defaultAliases   = 10_000
)

// maxDocumentBytes is the most bytes of one YAML document, JSON value or item of a List
// in JSON: etcd, and so Kubernetes, refuses objects of more than 1.5 MiB, and a parsed
// text costs 8 times its length while it is read.
const maxDocumentBytes = 8 << 20

// DefaultLimits are 64 MiB, 100,000 documents, depth 64, 10,000 keys a mapping, 200,000
// nodes a document and 10,000 nodes added by aliases.
func DefaultLimits() Limits { return Limits{}.orDefaults() }

func (l Limits) orDefaults() Limits {
	or := func(n *int, value int) {
		if *n <= 0 {
			*n = value
		}
	}
	or(&l.Bytes, defaultBytes)
	or(&l.Documents, defaultDocuments)
	or(&l.Depth, defaultDepth)
	or(&l.Keys, defaultKeys)
	or(&l.Nodes, defaultNodes)
	or(&l.Aliases, defaultAliases)
	return l
}
