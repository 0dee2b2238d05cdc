// Package auth authenticates and authorizes the users of the API, and authenticates the appliance
// to its clients.
//
// Over the unix socket the kernel names the peer (Local). Over TLS a client
// shows a token that it was given over the socket before (Tokens); the server shows a
// certificate, signed by a CA of its own or given by the operator (Authority, Files).
//
// Invariants:
//
//   - A key is on disk, and would survive a power cut, before anything is signed with it.
//     Key files are readable by their owner only.
//   - A token cannot be made, changed or prolonged without the key. Nothing about a token is
//     believed before its signature is checked, which takes equally long for every wrong one.
//   - Boxes may share the key of tokens and the CA: then what ended does not become valid again when a box
//     gets or loses them.
//   - Fail closed: a request without authentication has no role.
//
// The package has no requests or paths: what a Role may do is decided by the packages that
// serve them.
//
//	tokens, err := auth.OpenTokens(dir)
//	text, expires, err := tokens.Issue(auth.User{Name: "root", Role: auth.Reader}, time.Hour)
//	user, expires, err = tokens.Verify(text)
package auth
