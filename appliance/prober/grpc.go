package prober

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"svcctl.io/svcctl/appliance/health"
)

// askGRPC calls grpc.health.v1.Health/Check over HTTP/2 without TLS, as the gRPC protocol over
// HTTP/2 and the Health Checking Protocol of gRPC have it. The two messages are encoded here: each
// has one field.
func askGRPC(c *conn, t *target) health.Result {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	given := false
	transport := &http.Transport{
		Protocols: protocols,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if given {
				return nil, errors.New("one connection for each check")
			}
			given = true
			return c, nil
		},
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
	}
	defer transport.CloseIdleConnections()

	request, err := http.NewRequest(http.MethodPost, "http://"+t.addr.String()+"/grpc.health.v1.Health/Check", bytes.NewReader(grpcRequest(t.check.Name)))
	if err != nil {
		return failed(health.Void, "not asked: the check makes no request")
	}
	request.Host = cmp.Or(t.check.Host, t.addr.String())
	request.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "User-Agent": {"svcctl-health"}}
	response, err := transport.RoundTrip(request) // which follows no redirect
	if err != nil {
		return broken(err, t.check, "a gRPC answer")
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return failed(health.Refused, fmt.Sprintf("HTTP status %d", response.StatusCode))
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err != nil {
		return broken(err, t.check, "a gRPC answer")
	}
	if len(body) > maxBody {
		return failed(health.Refused, "the answer is too long for a health check of gRPC")
	}
	// An answer of trailers only has the status in its header.
	return grpcResult(cmp.Or(response.Trailer.Get("Grpc-Status"), response.Header.Get("Grpc-Status")), body)
}

// grpcRequest is HealthCheckRequest{service: name}, with the prefix of a message: not compressed,
// four bytes of length.
func grpcRequest(name string) []byte {
	var message []byte
	if name != "" {
		message = append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(name))), name...)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// The codes of gRPC's status that a health service answers with, and the serving status.
const (
	grpcNotFound      = 5
	grpcUnimplemented = 12
	serving           = 1
)

func grpcResult(status string, body []byte) health.Result {
	code, err := strconv.ParseUint(status, 10, 16)
	switch {
	case err != nil:
		return failed(health.Refused, "the answer is not gRPC")
	case code == grpcNotFound:
		return failed(health.Refused, "gRPC status 5: the server does not know this service")
	case code == grpcUnimplemented:
		return failed(health.Refused, "gRPC status 12: the server has no grpc.health.v1")
	case code != 0:
		return failed(health.Refused, fmt.Sprintf("gRPC status %d", code))
	}
	switch is, ok := grpcServing(body); {
	case !ok:
		return failed(health.Refused, "the answer is not of grpc.health.v1")
	case is != serving:
		return failed(health.Refused, fmt.Sprintf("not serving: grpc.health.v1 says %d", is))
	}
	return health.Result{}
}

// grpcServing reads HealthCheckResponse, whose field 1 is the status.
func grpcServing(body []byte) (status uint64, ok bool) {
	if len(body) < 5 || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-5 {
		return 0, false
	}
	for message := body[5:]; len(message) > 0; {
		tag, n := binary.Uvarint(message)
		if n <= 0 || tag&7 != 0 { // all it has is a number
			return 0, false
		}
		value, m := binary.Uvarint(message[n:])
		if m <= 0 {
			return 0, false
		}
		if tag>>3 == 1 {
			status = value
		}
		message = message[n+m:]
	}
	return status, true
}
