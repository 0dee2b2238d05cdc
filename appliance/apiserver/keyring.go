package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"svcctl.io/svcctl/api/auth"
)

// SharedKeys are the keys that the boxes of a fleet have in common. All methods may be called concurrently.
type SharedKeys interface {
	// Tokens returns the key that signs tokens, with its ID: "" while there is none; the key is nil when this box cannot
	// read it. CA returns the CA of the API's certificates likewise, as auth.Authority.Share takes it.
	Tokens() (id string, key []byte)
	CA() (id string, key []byte)
	// ReplaceTokens makes a key the one that signs tokens, if the one in force has an ID still, "" for none.
	ReplaceTokens(ctx context.Context, before string, key []byte) error
	ReplaceCA(ctx context.Context, before string, key []byte) error
	// Sharing is why this box shares no keys; nil: it does.
	Sharing() error
	// Changes is closed with the next change.
	Changes() <-chan struct{}
}

const (
	// keyringRetry is the wait after a key could not be made.
	keyringRetry = 5 * time.Second
	// keyringLook is the interval at which the expiry of the CA is checked.
	keyringLook = time.Hour
)

// keyring has the tokens and the certificates of this box be those of its fleet. While the fleet has none, or this box
// cannot read them, they are its own.
type keyring struct {
	shared    SharedKeys // nil: the box is one of its own
	tokens    *auth.Tokens
	authority *auth.Authority // nil: the operator gave a certificate
	log       *slog.Logger
	looked    time.Time // at the end of the CA; run alone has it

	mu   sync.Mutex
	caID string // of the CA that authority has; "": its own
}

// openKeyring reads the keys in a directory, or makes them.
func openKeyring(dir string, shared SharedKeys, log *slog.Logger) (k *keyring, err error) {
	k = &keyring{shared: shared, log: log}
	if shared != nil {
		if id, key := shared.Tokens(); key != nil {
			k.tokens, err = auth.OpenShared(dir, id, key)
			return k, err
		}
	}
	k.tokens, err = auth.OpenTokens(dir)
	return k, err
}

// follow has what boxes share in force here.
func (k *keyring) follow() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	id, key := k.shared.Tokens()
	if key == nil {
		id = "" // what it had is not in force any more
	}
	err := k.tokens.Share(id, key)
	if k.authority == nil {
		return err
	}
	id, key = k.shared.CA()
	if id == k.caID || id != "" && key == nil { // a CA that cannot be read leaves the one before
		return err
	}
	if caErr := k.authority.Share(key); caErr != nil {
		return errors.Join(err, caErr)
	}
	k.caID = id
	return err
}

// keep replaces the shared keys that are missing or expired, and the key of tokens also after a revocation on this box that could not
// be sent to the other boxes.
func (k *keyring) keep(ctx context.Context) error {
	if k.shared.Sharing() != nil {
		return nil
	}
	id, key := k.shared.Tokens()
	mine, ended := k.tokens.Shared()
	var errs []error
	if id == "" || key != nil && ended && mine == id {
		errs = append(errs, k.shared.ReplaceTokens(ctx, id, auth.NewTokenKey()))
	}
	id, key = k.shared.CA()
	if k.authority == nil || id != "" && (key == nil || time.Since(k.looked) < keyringLook) {
		return errors.Join(errs...)
	}
	k.looked = time.Now()
	ca, ends, err := k.authority.Export()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	if id == "" || ends {
		if ends {
			if ca, err = auth.NewAuthorityKey(time.Now()); err != nil {
				return errors.Join(append(errs, err)...)
			}
		}
		errs = append(errs, k.shared.ReplaceCA(ctx, id, ca))
	}
	return errors.Join(errs...)
}

// run follows the keys of the fleet until ctx is done.
func (k *keyring) run(ctx context.Context) error {
	for ctx.Err() == nil {
		changed := k.shared.Changes()
		wait := keyringLook
		if err := k.follow(); err != nil {
			k.log.Error("the keys of the fleet are not used", "err", err)
			wait = keyringRetry
		}
		if err := k.keep(ctx); err != nil && ctx.Err() == nil {
			k.log.Debug("the fleet has no new keys yet", "err", err)
			wait = keyringRetry
		}
		again := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-again.C:
		}
		again.Stop()
	}
	return nil
}

// revoke is api.TLS.Revoke.
func (k *keyring) revoke(ctx context.Context) (pending, err error) {
	mine, _ := k.tokens.Shared()
	if mine == "" {
		if err := k.tokens.RevokeAll(); err != nil {
			return nil, err
		}
		if id, _ := k.shared.Tokens(); id != "" && k.shared.Sharing() == nil {
			return errors.New("this box cannot read the key of its fleet's tokens: run it on a box that can"), nil
		}
		return nil, nil
	}
	if err := k.tokens.End(mine); err != nil {
		return nil, err
	}
	pending = k.shared.ReplaceTokens(ctx, mine, auth.NewTokenKey())
	if err := k.follow(); err != nil {
		k.log.Error("the keys of the fleet are not used", "err", err)
	}
	if id, _ := k.shared.Tokens(); id != mine {
		return nil, nil // by this call, or by another box
	}
	return fmt.Errorf("the other boxes of the fleet accept them until this one reaches etcd (%w)", pending), nil
}
