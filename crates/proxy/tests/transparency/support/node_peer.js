// An HTTP/1 origin and WebSocket peers in Node.
//
// Usage: node_peer.js serve            the listening socket is standard input
//        node_peer.js serve-ws         the same with the library `ws`, which also answers at /ws
//        node_peer.js call-ws URL...   a conversation with a WebSocket server at each URL; what came of it, a line each

const http = require('http');

function answer(request, response) {
  let length = 0;
  request.on('data', (chunk) => { length += chunk.length; });
  request.on('end', () => response.end(`echo ${request.method} ${request.url} ${length}\n`));
}

function serve(upgrades) {
  const server = http.createServer(answer);
  if (upgrades) {
    const { WebSocketServer } = require('ws');
    const sockets = new WebSocketServer({ noServer: true });
    server.on('upgrade', (request, socket, head) => {
      if (request.url !== '/ws') {
        socket.end('HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\nConnection: close\r\n\r\n');
        return;
      }
      sockets.handleUpgrade(request, socket, head, (ws) => {
        ws.send('hello');  // in the packet of the 101, or right behind it
        ws.on('message', (data, binary) => ws.send(binary ? data : `back ${data}`, { binary }));
      });
    });
  }
  server.listen({ fd: 0 });
}

function call(url, greets) {
  const WebSocket = require('ws');
  return new Promise((resolve) => {
    const lines = [];
    const done = (line) => { lines.push(line); resolve(lines.join('\n')); };
    const headers = process.env.TRACESTATE ? { tracestate: process.env.TRACESTATE } : {};
    const ws = new WebSocket(url, { perMessageDeflate: true, headers });
    const large = Buffer.alloc(300000, 'x');
    ws.on('upgrade', (response) => lines.push(`upgrade ${response.statusCode} ${response.headers.upgrade}`));
    ws.on('unexpected-response', (request, response) => {
      request.destroy();  // else it keeps the connection, and this process
      done(`refused ${response.statusCode}`);
    });
    ws.on('error', (error) => done(`error ${error.message}`));
    ws.on('open', () => ws.send('one'));
    ws.on('message', (data, binary) => {
      lines.push(binary ? `binary ${data.length} ${data.equals(large)}` : `text ${data.length > 40 ? data.length : data}`);
      if (String(data) === 'back one') ws.ping('are you there');
      if (String(data).length > 1000) ws.close(1000, 'enough');
    });
    ws.on('pong', (data) => { lines.push(`pong ${data}`); ws.send(large.toString()); });
    ws.on('close', (code, reason) => done(`close ${code} ${reason}`));
  });
}

async function main([mode, ...urls]) {
  if (mode !== 'call-ws') return serve(mode === 'serve-ws');
  for (const url of urls) console.log(await call(url));
}

main(process.argv.slice(2));
