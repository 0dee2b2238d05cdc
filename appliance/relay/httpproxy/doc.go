// Package httpproxy passes the requests of one client connection on to an endpoint, over HTTP/1.1, with
// the client's address in X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Port. Clients speak HTTP/1.1 or
// HTTP/2, and may upgrade to WebSocket.
//
// The connections that are made for a client are its own: no request goes over a connection that another
// client's went over. Nothing is routed, cached, rewritten or compressed.
//
// Its caller accepts clients, ends their TLS, and connects to endpoints.
package httpproxy
