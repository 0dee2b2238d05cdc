package fleet

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store/fleet/stream"
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

// fitsInTxn reports whether a commit fits into one request.
func fitsInTxn(ops []operation, note []byte) bool {
	size := len(note)
	for i := range ops {
		size += len(ops[i].Key) + len(ops[i].Value)
	}
	return len(ops) < maxOperations && size <= maxRequest
}

// encodeBundle returns a commit as one compressed text: the note and the operations, each with its length.
func encodeBundle(note []byte, ops []operation) ([]byte, error) {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	w.Write(stream.AppendText(nil, note)) // a bytes.Buffer takes all
	var buffer []byte
	for i := range ops {
		buffer = stream.AppendOp(buffer[:0], &ops[i])
		w.Write(buffer)
	}
	err = w.Close()
	return out.Bytes(), err
}

// decodeBundle is the inverse of encodeBundle.
func decodeBundle(text []byte) (note []byte, ops []operation, err error) {
	plain, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(text)), maxBundle+1))
	if err != nil || len(plain) > maxBundle {
		return nil, nil, fmt.Errorf("read a large commit: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	p := stream.NewParser(plain)
	note = p.Text()
	if ops, err = p.Ops(); err != nil {
		return nil, nil, errors.New("read a large commit: it is cut short")
	}
	return note, ops, nil
}

// writeBundle writes the parts of a large commit. Each compares the head that the commit follows on, so that none is written
// after another commit. They have no effect until a head names them.
func (e *member) writeBundle(ctx context.Context, seen *head, note []byte, ops []operation) (name string, parts int, err error) {
	text, err := encodeBundle(note, ops)
	if err != nil {
		return "", 0, err
	}
	name = fmt.Sprintf("%016x-%s", seen.mod, newID())
	for from := 0; from == 0 || from < len(text); from += partSize {
		part := text[from:min(len(text), from+partSize)]
		won, _, err := e.compareHead(ctx, seen, clientv3.OpPut(e.key(fmt.Sprintf("%s%s/%06d", bundlePrefix, name, parts)), string(part)))
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

// readBundle reads the bundle of a head, as of the revision of the head or a later one; 0: the newest.
func (e *member) readBundle(ctx context.Context, h *head, at int64) (note []byte, ops []operation, err error) {
	resp, err := e.client.Get(ctx, e.key(bundlePrefix+h.Bundle+"/"), clientv3.WithPrefix(), clientv3.WithRev(at))
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
	return decodeBundle(text)
}

// applyBundleOf puts the objects of a bundle into their places, and deletes the bundle and unused parts, unless another head is
// the newest. Each step compares the head and is idempotent: it may be done twice, and by another box than
// the one that wrote the bundle.
func (e *member) applyBundleOf(ctx context.Context, h *head) error {
	if h == nil || h.Bundle == "" {
		return nil
	}
	_, ops, err := e.readBundle(ctx, h, 0)
	if err != nil {
		if now, _, headErr := e.askHead(ctx); headErr == nil && (now == nil || now.mod != h.mod) {
			return nil // another head has replaced it
		}
		return err
	}
	for len(ops) > 0 {
		n, size := 0, 0
		var etcd []clientv3.Op
		for n < len(ops) && n < maxOperations && (n == 0 || size+len(ops[n].Key)+len(ops[n].Value) <= maxRequest) {
			size += len(ops[n].Key) + len(ops[n].Value)
			etcd = append(etcd, e.op(&ops[n]))
			n++
		}
		ops = ops[n:]
		if won, _, err := e.compareHead(ctx, h, etcd...); err != nil {
			return err
		} else if !won {
			return nil // another box has finished it
		}
	}
	done := h.next(e.cfg.Box)
	done.Revision, done.Bundle, done.Parts = h.Revision, "", 0
	value, err := done.encode()
	if err != nil {
		return err
	}
	// Parts of older heads are of no use: h is the newest one.
	_, _, err = e.compareHead(ctx, h, clientv3.OpPut(e.key(headKey), value),
		clientv3.OpDelete(e.key(bundlePrefix), clientv3.WithPrefix()))
	return err
}

// deleteStaleParts deletes the parts of bundles that no head names and none can any more, since their writers lost to another
// commit or have died.
func (e *member) deleteStaleParts(ctx context.Context) error {
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
