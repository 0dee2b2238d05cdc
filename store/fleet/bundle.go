package fleet

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Limits of etcd are 128 operations and 1.5 MiB a request by default (etcd.io, "System limits").
const (
	maxOperations = 120
	maxRequest    = 1 << 20
	// partSize is the size of the parts of a bundle, in bytes.
	partSize = 1 << 20
	// maxValue is the largest object that a fleet takes, in bytes.
	maxValue = 1<<20 + 1<<18
	// maxBundle bounds what the parts of a bundle unfold to, in bytes.
	maxBundle = 1 << 30
)

// fits reports whether a commit goes into one request.
func fits(ops []operation, note []byte) bool {
	size := len(note)
	for i := range ops {
		size += len(ops[i].key) + len(ops[i].value)
	}
	return len(ops) < maxOperations && size <= maxRequest
}

// fold writes a commit as one compressed text: the note and the operations, each with its length.
func fold(note []byte, ops []operation) ([]byte, error) {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	write := func(b []byte) {
		w.Write(binary.AppendUvarint(nil, uint64(len(b)))) // a bytes.Buffer takes all
		w.Write(b)
	}
	write(note)
	for i := range ops {
		kind := byte('+')
		if ops[i].remove {
			kind = '-'
		}
		w.Write([]byte{kind})
		write([]byte(ops[i].key))
		if !ops[i].remove {
			write(ops[i].value)
		}
	}
	err = w.Close()
	return out.Bytes(), err
}

// unfoldText is the inverse of fold.
func unfoldText(text []byte) (note []byte, ops []operation, err error) {
	plain, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(text)), maxBundle+1))
	if err != nil || len(plain) > maxBundle {
		return nil, nil, fmt.Errorf("read a large commit: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	cut := errors.New("read a large commit: it is cut short")
	next := func() ([]byte, bool) {
		size, n := binary.Uvarint(plain)
		if n <= 0 || size > uint64(len(plain)-n) {
			return nil, false
		}
		part := plain[n : n+int(size)]
		plain = plain[n+int(size):]
		return part, true
	}
	note, ok := next()
	for ok && len(plain) > 0 {
		op := operation{remove: plain[0] == '-'}
		plain = plain[1:]
		var key []byte
		if key, ok = next(); ok {
			op.key = string(key)
			if !op.remove {
				op.value, ok = next()
			}
		}
		ops = append(ops, op)
	}
	if !ok {
		return nil, nil, cut
	}
	return note, ops, nil
}

// writeBundle writes the parts of a large commit. Each compares the head that the commit follows on,
// so that none appears after it was overtaken. They are nothing until a head names them.
func (e *Engine) writeBundle(ctx context.Context, seen *head, note []byte, ops []operation) (name string, parts int, err error) {
	text, err := fold(note, ops)
	if err != nil {
		return "", 0, err
	}
	name = fmt.Sprintf("%016x-%s", seen.mod, newID())
	for from := 0; from == 0 || from < len(text); from += partSize {
		part := text[from:min(len(text), from+partSize)]
		put := clientv3.OpPut(e.key(partKey(name, parts)), string(part))
		won, _, err := e.guarded(ctx, seen, put)
		if err != nil {
			return "", 0, err
		}
		if !won {
			return "", 0, errOvertaken
		}
		parts++
	}
	return name, parts, nil
}

func partKey(name string, part int) string { return fmt.Sprintf("%s%s/%06d", bundlePrefix, name, part) }

// errOvertaken means that the head has moved, so the transaction does not follow on it.
var errOvertaken = errors.New("the head has moved")

// readBundle reads what a head with a bundle consists of, as of the head's own revision, or later.
func (e *Engine) readBundle(ctx context.Context, h *head, at int64) (note []byte, ops []operation, err error) {
	from := e.key(bundlePrefix + h.Bundle + "/")
	resp, err := e.client.Get(ctx, from, clientv3.WithPrefix(), clientv3.WithRev(at))
	if err != nil {
		return nil, nil, err
	}
	if len(resp.Kvs) != h.Parts {
		return nil, nil, fmt.Errorf("read a large commit: %d of %d parts are there", len(resp.Kvs), h.Parts)
	}
	var text []byte
	for _, kv := range resp.Kvs {
		text = append(text, kv.Value...)
	}
	return unfoldText(text)
}

// unfold puts the objects of the head's bundle into their places, and drops the bundle and unused
// parts. Each step compares the head and is idempotent: it may be done twice, and by another box than
// the one that wrote the bundle.
func (e *Engine) unfold(ctx context.Context) error {
	e.unfolding.Lock()
	defer e.unfolding.Unlock()
	return e.unfoldHead(ctx, e.stands())
}

// unfoldHead is unfold for a head.
func (e *Engine) unfoldHead(ctx context.Context, h *head) error {
	if h == nil || h.Bundle == "" {
		return nil
	}
	_, ops, err := e.readBundle(ctx, h, 0)
	if err != nil {
		return e.overtaken(ctx, h, err)
	}
	for len(ops) > 0 {
		n, size := 0, 0
		var etcd []clientv3.Op
		for n < len(ops) && n < maxOperations && (n == 0 || size+len(ops[n].key)+len(ops[n].value) <= maxRequest) {
			size += len(ops[n].key) + len(ops[n].value)
			etcd = append(etcd, e.op(&ops[n]))
			n++
		}
		ops = ops[n:]
		if won, _, err := e.guarded(ctx, h, etcd...); err != nil {
			return err
		} else if !won {
			return nil // another box has finished it
		}
	}
	done := *h
	done.ID, done.Previous, done.Box, done.Bundle, done.Parts, done.Note = newID(), h.ID, e.cfg.Box, "", 0, nil
	value, err := done.encode()
	if err != nil {
		return err
	}
	// Parts whose head has moved on are of no use: h is the newest one.
	_, _, err = e.guarded(ctx, h, clientv3.OpPut(e.key(headKey), value),
		clientv3.OpDelete(e.key(bundlePrefix), clientv3.WithPrefix()))
	return err
}

// sweep drops the parts of bundles that no head has come to name and none can any more, since their
// writers were overtaken or have died.
func (e *Engine) sweep(ctx context.Context) error {
	now, _, err := e.askHead(ctx)
	if err != nil || now == nil {
		return err
	}
	resp, err := e.client.Get(ctx, e.key(bundlePrefix), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}
	for _, kv := range resp.Kvs {
		var seen int64
		name := strings.TrimPrefix(string(kv.Key), e.key(bundlePrefix))
		if _, err := fmt.Sscanf(name, "%016x-", &seen); err != nil || seen >= now.mod || now.Bundle != "" && strings.HasPrefix(name, now.Bundle+"/") {
			continue
		}
		if _, err := e.client.Delete(ctx, string(kv.Key)); err != nil {
			return err
		}
	}
	return nil
}

// overtaken is nil when a head is not the newest any more, and err otherwise.
func (e *Engine) overtaken(ctx context.Context, h *head, err error) error {
	now, _, askErr := e.askHead(ctx)
	if askErr == nil && (now == nil || now.mod != h.mod) {
		return nil
	}
	return err
}

// guarded makes operations if the head is the one that is expected, and tells the head that there is
// otherwise (nil: none).
//
// The value is compared too, while it is known: an etcd that was restored may come to the same
// revision with another head.
func (e *Engine) guarded(ctx context.Context, seen *head, ops ...clientv3.Op) (won bool, now *head, err error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	same := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(e.key(headKey)), "=", seen.mod)}
	if seen.text != "" {
		same = append(same, clientv3.Compare(clientv3.Value(e.key(headKey)), "=", seen.text))
	}
	e.step()
	resp, err := e.client.Txn(call).If(same...).
		Then(ops...).
		Else(clientv3.OpGet(e.key(headKey))).Commit()
	e.step()
	if err != nil {
		return false, nil, err
	}
	if resp.Succeeded {
		return true, &head{mod: resp.Header.Revision}, nil
	}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		now, err = e.decodeHead(kvs[0].Value, kvs[0].ModRevision)
		if held := (*heldError)(nil); errors.As(err, &held) {
			return false, nil, nil // whoever follows it says so
		}
	}
	return false, now, err
}

// op is an operation as etcd has it.
func (e *Engine) op(o *operation) clientv3.Op {
	if o.remove {
		return clientv3.OpDelete(e.key(o.key))
	}
	return clientv3.OpPut(e.key(o.key), string(o.value))
}
