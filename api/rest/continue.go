package rest

import (
	"encoding/base64"
	"encoding/json"
	"strings"
)

// latest in place of the revision of a continueToken goes on with what there is now.
const latest = -1

// continueToken is the position at which a list continues. Clients must not look into it, but
// it has the form of Kubernetes' own.
type continueToken struct {
	Version  string `json:"v"`
	Revision int64  `json:"rv"`
	// Start is after which "namespace/name" to go on.
	Start string `json:"start"`
}

const tokenVersion = "meta.k8s.io/v1"

// after is the token to go on behind an object with.
func after(namespace, name string, revision int64) string {
	text, _ := json.Marshal(continueToken{tokenVersion, revision, namespace + "/" + name}) // text and a number
	return base64.RawURLEncoding.EncodeToString(text)
}

// readToken reads the value of continue in a query.
func readToken(text string) (continueToken, error) {
	var token continueToken
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(decoded, &token)
	}
	switch {
	case err != nil:
		return token, badRequest("invalid continue token: continue key is not valid: %v", err)
	case token.Version != tokenVersion:
		return token, badRequest("invalid continue token: continue key is not valid: server does not recognize this encoded version %s", token.Version)
	case token.Revision == 0 || token.Revision < latest:
		return token, badRequest("invalid continue token: continue key is not valid: incorrect encoded start resourceVersion (version %s)", tokenVersion)
	case !strings.Contains(token.Start, "/"):
		return token, badRequest("invalid continue token: continue key is not valid: %q", token.Start)
	}
	return token, nil
}

// position is the object after which to go on.
func (t continueToken) position() viewKey {
	namespace, name, _ := strings.Cut(t.Start, "/")
	return viewKey{namespace, name}
}
